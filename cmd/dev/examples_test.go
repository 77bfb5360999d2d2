package main

import (
	"regexp"
	"testing"
)

// The examples can be loaded, and have titles in many languages.
func TestReadExamples(t *testing.T) {
	t.Parallel()
	inputs, err := readVideos("../../examples/films.jsonl")
	if err != nil || len(inputs) < 100 {
		t.Errorf("readVideos() = %d videos, %v, want at least 100", len(inputs), err)
	}
	for script, want := range map[string]int{`[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]`: 30, `[À-ɏ]`: 20, `\p{Cyrillic}`: 2, `\p{Arabic}`: 2} {
		letters, n := regexp.MustCompile(script), 0
		for _, in := range inputs {
			if letters.MatchString(in.video.GetTitle()) {
				n++
			}
		}
		if n < want {
			t.Errorf("titles with %s: %d, want at least %d", script, n, want)
		}
	}
}
