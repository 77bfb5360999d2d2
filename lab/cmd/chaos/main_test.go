package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Values without a flag come from the profile.
func TestParse(t *testing.T) {
	quick, err := parse([]string{"--seed", "7"})
	if err != nil || quick.Seed != 7 || quick.Long || quick.Duration > 2*time.Minute || !strings.HasPrefix(filepath.Base(quick.Out), "chaos-7-") {
		t.Errorf("quick: %+v, %v", quick, err)
	}
	long, err := parse([]string{"--profile", "long", "--duration", "10m", "--out", "x"})
	if err != nil || !long.Long || long.Duration != 10*time.Minute || long.Out != "x" {
		t.Errorf("long: %+v, %v", long, err)
	}
	long.Older = "v1"
	if twice, err := parse(strings.Fields("--out x " + again(long))); err != nil || again(twice) != again(long) || twice.Seed != long.Seed || twice.Duration != long.Duration || twice.Older != "v1" {
		t.Errorf("again with %s: %+v, %v, want %+v", again(long), twice, err, long)
	}
}

// An error is one sentence that names the flag.
func TestParseErrors(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--profile", "huge"}, "--profile"},
		{[]string{"--seed", "-1"}, "--seed"},
		{[]string{"--duration", "-1s"}, "--duration"},
		{[]string{"--duration", "0"}, "--duration"},
		{[]string{"--rate", "0"}, "--rate"},
		{[]string{"--broker", "nats"}, "--broker"},
		{[]string{"--relay", "external"}, "--relay"},
		{[]string{"--rate", "0.5"}, "--rate"},
		{[]string{"now"}, `"now"`},
		{[]string{"--speed", "1"}, "speed"},
	} {
		if err := run(t.Context(), tt.args, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("run(%q) = %v, want an error that names %s", tt.args, err, tt.want)
		}
	}
}

// The help lists every flag.
func TestHelp(t *testing.T) {
	for _, flag := range []string{"--profile", "--seed", "--duration", "--rate", "--out", "--broker", "--relay", "--older"} {
		if !strings.Contains(usage, flag) {
			t.Errorf("the help does not list %s", flag)
		}
	}
}
