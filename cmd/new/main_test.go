package main

import (
	"fmt"
	"os/exec"
	"testing"
)

// Without git, this command cannot make a service. Its tests are then skipped, and go test passes.
func TestMain(m *testing.M) {
	if _, err := exec.LookPath("git"); err != nil {
		fmt.Println("cmd/new is not tested: git is not installed")
		return
	}
	m.Run()
}
