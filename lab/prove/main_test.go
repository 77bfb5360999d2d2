package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// write writes the files of a folder.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The proofs run with the words of the service, and leave nothing there, whether they hold, fail
// or are interrupted.
func TestProofsLeaveNothing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, body, want string
		interrupt        bool
	}{
		{"hold", `if orders.Name != "video_catalog" { t.Fatal(orders.Name) }`, "ok", false},
		{"fail", `t.Fatal("a fault")`, "a fault", false},
		{"are interrupted", `os.WriteFile("begun", nil, 0o600); time.Sleep(time.Hour)`, "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			engine, service := t.TempDir(), t.TempDir()
			write(t, engine, map[string]string{"a/a_test.go": `package a

import (
	"os"
	"testing"
	"time"

	orders "example.com/videocatalog"
)

var _, _, _ = os.Args, time.Hour, orders.Name

func TestA(t *testing.T) { ` + test.body + " }\n"})
			write(t, service, map[string]string{
				"go.mod": "module example.com/orders\n", "orders.go": "package orders\n\nconst Name = \"orders_db\"\n",
				"template.json": `{"module": "example.com/orders", "schema": "orders_db"}`,
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.interrupt {
				go func() {
					for ctx.Err() == nil {
						if _, err := os.Stat(filepath.Join(service, "lab", "engine", "a", "begun")); err == nil {
							cancel()
						}
						time.Sleep(time.Millisecond)
					}
				}()
			}
			var out bytes.Buffer
			err := run(ctx, engine, []string{service}, &out)
			if (err == nil) != (test.want == "ok") || !strings.Contains(out.String(), test.want) {
				t.Errorf("run() = %v, want %q in:\n%s", err, test.want, &out)
			}
			if _, err := os.Stat(filepath.Join(service, "lab")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the folder of the proofs: %v, want that it does not exist", err)
			}
		})
	}
}

// A lab that the service has is left alone.
func TestServiceWithALab(t *testing.T) {
	t.Parallel()
	service := t.TempDir()
	write(t, service, map[string]string{"template.json": "{}", "lab/own.txt": "own"})
	if err := run(t.Context(), t.TempDir(), []string{service}, new(bytes.Buffer)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("run() = %v, want that there is a lab", err)
	}
	if _, err := os.Stat(filepath.Join(service, "lab/own.txt")); err != nil {
		t.Error(err)
	}
}
