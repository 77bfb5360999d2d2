package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// parts are the files and folders of the parts that a lean service may leave out, by their names. A
// star stands for any part of a name. In other files, comments mark the lines about a part:
// "only PART" at the end of a line, or "only PART: begin" and "only PART: end" on lines around
// them. A new service has no marks.
var parts = map[string][]string{
	"chinese":    {"README.zh-CN.md"},
	"console":    {"internal/app/limit.go"},
	"decisions":  {"docs/decisions", "docs/dependencies.md", "docs/recipes.md", "docs/style.md", "docs/supabase.md"},
	"examples":   {"examples"},
	"kafka":      append([]string{relaysPage}, seekFiles...),
	"lab":        nil, // no service has it
	"observe":    {"deploy/observe", "docs/alerts.md", "docs/runbooks.md"},
	"oidc":       {"internal/app/checker.go", "internal/auth/checker.go", "internal/transport/methods.go"},
	"pools":      {"deploy/run/pools.*.yaml"},
	"reactions":  {"internal/pg/base.go"},
	"relay-http": {"internal/app/once.go"},
	"replay":     seekFiles,
	"tenancy":    {"cmd/server/tenants_test.go", "internal/app/tenants.go", "internal/auth/scope.go", "internal/pg/tenant.go", "internal/tenant", "kit/localissuer"},
	"terraform":  {"deploy/terraform"},
	"wal":        {relaysPage, "internal/app/store.go"},
}

// relaysPage compares the ways of events out of a service.
const relaysPage = "docs/relays.md"

// seekFiles are of each broker's command to seek.
var seekFiles = []string{
	"internal/app/seek.go", "internal/operate/seek.go", "internal/pg/forget.go", "internal/pg/queries/forget.sql", "internal/pg/internal/sqlcgen/forget.sql.go",
}

// filesOnlyOf returns the files of a part that no part of the service needs.
func filesOnlyOf(part string, without []string) []string {
	return slices.DeleteFunc(slices.Clone(parts[part]), func(file string) bool {
		for other, files := range parts {
			if !slices.Contains(without, other) && slices.Contains(files, file) {
				return true
			}
		}
		return false
	})
}

// The marks: full for lines that a lean service does not have, templateOnly for lines that no service has.
const (
	full         = "full"
	templateOnly = "template"
)

// choices are the parts that a lean service can have, besides the options. The other parts are
// about the example.
var choices = []string{"pools", "terraform"}

// The options of the template are the folders of optionsDir. A lean service has the options of
// With. For each other option its folder, its line in optionsList, and each line of a page with the
// path of its folder are left out: a row, or a point of a list. The machinery that only an option uses is a part of its name.
const (
	optionsDir  = "options"
	optionsList = "cmd/server/options.go"
)

// A part or an option can have a program of cmd/dev: the files of its name there, and its line in devList.
const (
	devDir  = "cmd/dev"
	devList = "cmd/dev/main.go"
)

// optionNames returns the names of the options.
func (t template) optionNames() ([]string, error) {
	folders, err := os.ReadDir(filepath.Join(t.root, optionsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for _, folder := range folders {
		all = append(all, folder.Name())
	}
	return all, err
}

// withoutOptions removes options from the list of a program: their imports and their entries.
func withoutOptions(list string, without []string) string {
	var kept strings.Builder
	for line := range strings.Lines(list) {
		if !slices.ContainsFunc(without, func(name string) bool {
			ident := strings.ReplaceAll(name, "-", "")
			return strings.HasSuffix(line, "/"+optionsDir+"/"+name+"\"\n") || strings.HasPrefix(line, "\t\t"+ident+".") || line == "\t\t"+ident+"(),\n"
		}) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// withoutOptionLines removes the lines of a page about options.
func withoutOptionLines(page string, without []string) string {
	var kept strings.Builder
	for line := range strings.Lines(page) {
		if !slices.ContainsFunc(without, func(name string) bool { return strings.Contains(line, optionsDir+"/"+name+"/") }) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// marker matches a mark, with the spaces before it.
var marker = func() *regexp.Regexp {
	what := " only (" + strings.Join(append(slices.Sorted(maps.Keys(parts)), full, templateOnly), "|") + ")(: begin|: end)?"
	return regexp.MustCompile(`[ \t]*(?:<!--` + what + ` -->|(?://|#|--)` + what + `$)`)
}()

// unmark removes the marks from a text, with the lines that are marked for a part that is left
// out. A part that begins in another part ends there.
func unmark(text string, without []string) (string, error) {
	var kept strings.Builder
	var open []string
	left := 0 // how many of the open parts are left out
	for line := range strings.Lines(text) {
		body := strings.TrimSuffix(line, "\n")
		found := marker.FindStringSubmatchIndex(body)
		if found == nil {
			if left == 0 {
				kept.WriteString(line)
			}
			continue
		}
		groups := marker.FindStringSubmatch(body)
		part, place := groups[1]+groups[3], groups[2]+groups[4]
		isLeft := slices.Contains(without, part)
		switch {
		case place == ": begin":
			open = append(open, part)
			if isLeft {
				left++
			}
		case place == ": end" && (len(open) == 0 || open[len(open)-1] != part):
			return "", fmt.Errorf("the part %s ends where it has not begun", part)
		case place == ": end":
			open = open[:len(open)-1]
			if isLeft {
				left--
			}
		case left == 0 && !isLeft:
			kept.WriteString(line[:found[0]] + line[found[1]:])
		}
	}
	if len(open) > 0 {
		return "", fmt.Errorf("the part %s does not end", open[len(open)-1])
	}
	return kept.String(), nil
}
