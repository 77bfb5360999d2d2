package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const source = "../.."

// licenses.md is up to date with go.mod, and all licenses are allowed.
func TestListIsUpToDate(t *testing.T) {
	var got bytes.Buffer
	if err := run(t.Context(), []string{"--source", source}, &got, t.Output()); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(source, "lab", "licenses", "licenses.md"))
	if err != nil {
		t.Fatalf("read the list: %v", err)
	}
	if got.String() != string(want) {
		t.Errorf("licenses.md is stale: run make licenses; want\n%s", got.String())
	}
}

// A license with more requirements, a text that is not a license, and a missing license are errors.
func TestRecognize(t *testing.T) {
	mit, err := os.ReadFile(filepath.Join(source, "LICENSE"))
	if err != nil {
		t.Fatalf("read our license: %v", err)
	}
	const notice = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public
License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.

This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even the implied warranty of
MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU General Public License for more details.

You should have received a copy of the GNU General Public License along with this program. If not, see <https://www.gnu.org/licenses/>.`
	for _, test := range []struct{ name, file, text, want string }{
		{"allowed", "LICENSE.md", string(mit), ""},
		{"copyleft", "COPYING", notice, "GPL-3.0"},
		{"no license at all", "LICENSE", "All rights reserved, ask us before you do anything with this.", "read it"},
		{"no file", "README", string(mit), "no license file"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, test.file), []byte(test.text), 0o600); err != nil {
			t.Fatalf("write: %v", err)
		}
		got, err := recognize(dir)
		switch {
		case test.want == "" && (err != nil || len(got) != 1 || got[0] != "MIT"):
			t.Errorf("%s: %v, error %v; want MIT", test.name, got, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, error %v; want an error with %q", test.name, got, err, test.want)
		}
	}
}
