package main

import (
	"fmt"
	"os/exec"
	"testing"
)

// A machine that has only Go cannot make a service, but it passes the tests of one.
func TestMain(m *testing.M) {
	if _, err := exec.LookPath("git"); err != nil {
		fmt.Println("cmd/new is not tested: git is not installed")
		return
	}
	m.Run()
}
