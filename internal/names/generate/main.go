// Command generate writes the names of internal/names where they cannot be read from
// its files: deploy/names.sh for the scripts, cloudbuild.yaml, and all Markdown, whose
// commands people copy. It runs in the root of the repository.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"example.com/videocatalog/internal/names"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// script is the file of the names that were generated last, so it is written
// after all others.
const script = "deploy/names.sh"

func run() error {
	before, err := os.ReadFile(script)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	now := render(names.Topics())
	if err := rename(words(before), words(now)); err != nil {
		return err
	}
	return os.WriteFile(script, now, 0o644) //nolint:gosec // everybody may read it
}

// render returns the script.
func render(all []names.Topic) []byte {
	var topics, schemas, subscriptions, remote []string
	for _, t := range all {
		if !t.Foreign {
			topics, schemas = append(topics, t.Name), append(schemas, t.Schema)
		}
		if t.Project != "" {
			remote = append(remote, "projects/"+t.Project+"/topics/"+t.Name)
		}
		for _, c := range t.Consumers {
			subscriptions = append(subscriptions, t.Subscription(c))
		}
	}
	return fmt.Appendf(nil, `# Generated from internal/names by make generate; do not edit.
# shellcheck shell=bash disable=SC2034 # the scripts use what this file sets
SERVICE=%s
TOPICS=(%s)
SUBSCRIPTIONS=(%s) # TOPIC.CONSUMER, with dead letters in TOPIC.CONSUMER.dead
SCHEMA_FILES=(%s) # of the topics, in their order
REMOTE_TOPICS=(%s) # in other projects: the subscriptions to them name them so
`, names.Service(), strings.Join(topics, " "), strings.Join(subscriptions, " "), strings.Join(schemas, " "), strings.Join(remote, " "))
}

// words returns the service, the topics and the subscriptions of a script.
func words(script []byte) (all [][]string) {
	for _, m := range regexp.MustCompile(`(?m)^(?:SERVICE|TOPICS|SUBSCRIPTIONS)=\(?([^)\n]*)`).FindAllSubmatch(script, -1) {
		all = append(all, strings.Fields(string(m[1])))
	}
	return all
}

// rename replaces the names that have changed.
func rename(before, now [][]string) error {
	to := renamed(before, now)
	if len(to) == 0 {
		return nil
	}
	for _, name := range slices.Concat(now...) { // a name that stays may contain one that does not
		if _, ok := to[name]; !ok {
			to[name] = name
		}
	}
	return filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".md" && path != "cloudbuild.yaml" {
			return err
		}
		content, err := os.ReadFile(path) //nolint:gosec // a file of this repository
		if err != nil {
			return err
		}
		text := replace(content, to)
		if bytes.Equal(text, content) {
			return nil
		}
		return os.WriteFile(path, text, 0o644) //nolint:gosec // everybody may read it
	})
}

// renamed returns the new name of each name that has changed. Where more names have gone
// than come, or the reverse, nobody can say which one became which: those are left to their
// author. A name that only has another place, because its file is called otherwise, has not
// changed.
func renamed(before, now [][]string) map[string]string {
	to := make(map[string]string)
	if len(before) != len(now) {
		return to
	}
	for i := range now {
		gone, come := without(before[i], now[i]), without(now[i], before[i])
		if len(gone) != len(come) {
			continue
		}
		for j, old := range gone {
			to[old] = come[j]
		}
	}
	return to
}

// without returns the names that are not among the others.
func without(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(others, name) })
}

// replace replaces names where they are whole, and no part of a longer word, of the module's
// path or of a domain. Of two names in one place the longer one counts.
func replace(text []byte, to map[string]string) []byte {
	var names []string
	for old := range to {
		names = append(names, regexp.QuoteMeta(old))
	}
	rule := regexp.MustCompile(`(example\.com/)?\b(?:` + strings.Join(names, "|") + `)\b(\.example\.com)?`)
	rule.Longest()
	return rule.ReplaceAllFunc(text, func(found []byte) []byte {
		name, ok := to[string(found)]
		if !ok {
			return found
		}
		return []byte(name)
	})
}
