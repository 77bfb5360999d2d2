package tuned

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// shorter shortens the pauses after a refusal, which no setting changes. An older version has settings for them.
var shorter = strings.NewReplacer("firstRetry = time.Second", "firstRetry = 100 * time.Millisecond", "lastRetry  = 10 * time.Minute", "lastRetry = time.Second")

//go:embed main.go.txt
var main []byte

// Overlay writes files into dir, and returns the flag with which `go build ./cmd/server` in root, the
// folder of the module of the service, makes a program with [Main] and shorter pauses. more replaces further files.
func Overlay(root, dir string, more map[string]string) (flag string, err error) {
	replace := map[string]string{
		filepath.Join(root, "cmd/server/main.go"):      filepath.Join(dir, "main.go"),
		filepath.Join(root, "internal/tuned/tuned.go"): filepath.Join(root, "lab/internal/tuned/tuned.go"),
	}
	maps.Copy(replace, more)
	pauses := filepath.Join(root, "internal/outbox/outbox.go")
	source, err := os.ReadFile(pauses) //nolint:gosec // our own source
	if err != nil {
		return "", err
	}
	replace[pauses] = filepath.Join(dir, "outbox.go")
	if err := os.WriteFile(replace[pauses], []byte(shorter.Replace(string(source))), 0o600); err != nil { //nolint:gosec // our own folder
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("marshal overlay: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), main, 0o600); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return "-overlay=" + file, os.WriteFile(file, list, 0o600)
}
