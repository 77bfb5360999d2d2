package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The names of a service, and the folder with a file per topic. In earlier versions of the template
// the first file had the topics too.
const (
	namesFile   = "internal/names/names.yaml"
	topicFolder = "internal/names/topics/"
)

// namesLine matches what the owner may have changed in the rest of namesFile, and topicLine
// what they may have changed in a topic.
var (
	namesLine = regexp.MustCompile(`(?m)^(service|error_domain): .*$`)
	topicLine = regexp.MustCompile(`(?m)^(name|consumers): .*$`)
)

// moveTopics stages the topics of the service in files of their own, if a merge brings those: git
// would only see that the lines that the owner has changed are gone.
func moveTopics(ctx context.Context, tree string) error {
	show := func(commit, name string) string {
		text, _ := output(ctx, tree, "git", "show", commit+":"+name) // a side may not have it
		return text
	}
	var ours, theirs struct {
		Topics []struct {
			Name, Schema   string
			AggregateTypes []string `yaml:"aggregate_types"`
			Consumers      []string
		}
	}
	text := show("MERGE_HEAD", namesFile)
	isRead := func(text string, names any) bool { return yaml.Unmarshal([]byte(text), names) == nil }
	if !isRead(show("HEAD", namesFile), &ours) || !isRead(text, &theirs) || len(theirs.Topics) > 0 {
		return nil // a conflict of another kind, for its owner
	}
	for _, topic := range ours.Topics {
		if len(topic.AggregateTypes) == 0 {
			return nil
		}
		path := topicFolder + topic.AggregateTypes[0] + ".yaml"
		lines := map[string]string{"name": topic.Name, "consumers": "[" + strings.Join(topic.Consumers, ", ") + "]"}
		moved := show("MERGE_HEAD", path)
		if moved == "" { // a topic of the owner's own
			moved = fmt.Sprintf("name:  \naggregate_types: [%s]\nschema: %s\nconsumers:  ", strings.Join(topic.AggregateTypes, ", "), topic.Schema)
		}
		if err := stage(ctx, tree, path, replaceLines(moved, topicLine, lines)); err != nil {
			return err
		}
	}
	if len(ours.Topics) == 0 || command(ctx, tree, "git", "diff", "--quiet", "--diff-filter=U", "--", namesFile) == nil {
		return nil
	}
	lines := make(map[string]string)
	for _, line := range namesLine.FindAllString(show("HEAD", namesFile), -1) {
		key, value, _ := strings.Cut(line, ": ")
		lines[key] = value
	}
	return stage(ctx, tree, namesFile, replaceLines(text, namesLine, lines))
}

// replaceLines sets the values of lines by their keys.
func replaceLines(text string, line *regexp.Regexp, values map[string]string) string {
	return line.ReplaceAllStringFunc(text, func(found string) string {
		key, _, _ := strings.Cut(found, ":")
		if value, ok := values[key]; ok {
			return key + ": " + value
		}
		return found
	}) + "\n"
}

// stage writes a file and stages it.
func stage(ctx context.Context, tree, name, text string) error {
	path := filepath.Join(tree, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // a folder of sources
		return err
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // a source
		return err
	}
	return command(ctx, tree, "git", "add", "--", name)
}
