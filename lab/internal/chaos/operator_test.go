package chaos

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
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
			_, ok, err := l.untilDone(t.Context(), []int{0, 3}, []string{"backfill"})
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

// A command is killed when that is asked for, and its output is kept.
func TestCommandIsKilled(t *testing.T) {
	t.Parallel()
	l := withCommand(t, `echo begun; touch "$0.begun"; exec sleep 60`)
	o, err := l.command(t.Context(), func(ctx context.Context) bool {
		for {
			if _, err := os.Stat(l.present + ".begun"); err == nil || !sleep(ctx, 1e6) {
				return err == nil
			}
		}
	})
	if err != nil || o.code != killed || o.stdout != "begun\n" {
		t.Errorf("command() = %+v, %v, want it killed after it had begun", o, err)
	}
	l = withCommand(t, "exit 4")
	if o, err := l.command(t.Context(), func(ctx context.Context) bool { <-ctx.Done(); return false }); err != nil || o.code != 4 {
		t.Errorf("command() = %+v, %v, want exit code 4", o, err)
	}
}

// At the end nothing may differ, and nothing may wait.
func TestComparisonAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, script string
		want         int
	}{
		{"equal", `echo '{"type":"video","compared":5,"differences":0,"pending":0}'`, 0},
		{"different", `echo '{"id":"0197f2a4-0000-7000-8000-000000000001","kind":"behind"}'; echo '{"type":"video","compared":5,"differences":1,"pending":0}'; exit 5`, 1},
		{"pending", `echo '{"type":"video","compared":5,"differences":0,"pending":1}'`, 1},
		{"failed", `echo 'server: no database' >&2; exit 1`, 1},
		{"no JSON", `echo video: compared 5 rows`, 1},
	} {
		l := withCommand(t, tt.script)
		l.compareAtTheEnd(t.Context())
		if len(l.problems) != tt.want {
			t.Errorf("%s: problems %v, want %d", tt.name, l.problems, tt.want)
		}
	}
}

// A comparison must find an entry that is damaged, and nothing that the owner rules out.
// While events are on their way, entries may be missing or behind.
func TestComparisonIsJudged(t *testing.T) {
	t.Parallel()
	id, other := uuid.UUID{0: 1}, uuid.UUID{0: 2}
	for _, tt := range []struct {
		name    string
		found   []difference
		damaged []string
		want    int
	}{
		{"nothing", nil, nil, 0},
		{"the damaged one", []difference{{ID: id, Kind: "different"}}, []string{id.String()}, 0},
		{"the damaged one, which an event has repaired since", []difference{{ID: id, Kind: "different"}}, nil, 0},
		{"not the damaged one", []difference{{ID: other, Kind: "behind"}}, []string{id.String()}, 1},
		{"others that wait", []difference{{ID: other, Kind: "behind"}, {ID: other, Kind: "missing"}}, nil, 0},
		{"others that cannot be", []difference{{ID: other, Kind: "ahead"}, {ID: other, Kind: "extra"}, {ID: other, Kind: "different"}}, nil, 3},
	} {
		if got := misjudged(tt.found, []string{id.String()}, tt.damaged); len(got) != tt.want {
			t.Errorf("%s: %q, want %d", tt.name, got, tt.want)
		}
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
