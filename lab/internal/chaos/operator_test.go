package chaos

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// withCommand returns a lab whose binary is a script.
func withCommand(t *testing.T, text string) *lab {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &lab{present: binary, operator: &process{environ: os.Environ()}, timeline: &timeline{to: new(bytes.Buffer)}}
}

// A command that fails is run again. One whose arguments are wrong is not, and breaks a rule.
func TestCommandsAreRepeated(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, script string
		runs         int
		ok           bool
	}{
		{"at once", `echo "$@" >"$0.runs"`, 1, true},
		{"nothing to do", `echo "$@" >"$0.runs"; exit 3`, 1, true},
		{"the third time", `echo "$@" >>"$0.runs"; n=$(wc -l <"$0.runs"); [ $n -gt 2 ] || exit 1`, 3, true},
		{"never", `echo "$@" >>"$0.runs"; exit 2`, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := withCommand(t, tt.script)
			ok, err := l.untilDone(t.Context(), []int{0, 3}, []string{"backfill"})
			if err != nil || ok != tt.ok || (len(l.problems) == 0) != tt.ok {
				t.Errorf("untilDone() = %t, %v, problems %v; want %t", ok, err, l.problems, tt.ok)
			}
			b, err := os.ReadFile(l.present + ".runs")
			if runs := strings.Count(string(b), "backfill\n"); err != nil || runs != tt.runs {
				t.Errorf("%d runs, %v, want %d", runs, err, tt.runs)
			}
		})
	}
}

// Actions of operators are part of every run.
func TestOperatorKindsAreScheduled(t *testing.T) {
	t.Parallel()
	all, _ := kinds()
	for _, f := range operatorKinds() {
		if f.group != groupOperator || !slices.ContainsFunc(all, func(other fault) bool { return other.kind == f.kind }) {
			t.Errorf("%q of the group %s is not in every run", f.kind, f.group)
		}
	}
}
