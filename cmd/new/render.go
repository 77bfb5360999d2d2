package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// notCopied are the files and folders that only the template needs.
var notCopied = []string{"CHANGELOG.md", "SECURITY.md", "cmd/new", "examples/firestore", "examples/saga", "lab"}

// license is the license of the template. An owner chooses a license for the service.
const license, licenseCopy = "LICENSE", "third_party/LICENSE"

// wordTest is the test that the machinery has no word of the example. A lean service does not have it:
// the words of its entity may be words of the machinery.
var wordTest = []string{"internal/archtest/words_test.go", "internal/archtest/testdata/words.txt"}

// render makes the service in its folder, not in a temporary one: the build cache has the folder in its keys, so the
// first go command there is fast. After a failure or an interrupt before the commit there is no folder; SIGKILL leaves
// it incomplete.
func render(ctx context.Context, from template, a options, stdout io.Writer) error {
	began := time.Now()
	target, err := filepath.Abs(a.dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o755); err != nil { //nolint:gosec // as git clone makes it: PostgreSQL of cmd/dev may be another user
		return err
	}
	r := &renderer{ctx: ctx, from: from, options: a, dir: target}
	steps := []step{{"copy and rename", r.copy}, {once, r.tools}}
	if !a.Full {
		steps = append(steps, step{"make the entity", r.addEntity})
	}
	err = inSteps(stdout, append(steps, step{"generate the rest, compile everything", r.generate}))
	if err != nil {
		return errors.Join(err, os.RemoveAll(target))
	}
	if err := inSteps(stdout, []step{{"commit", r.commit}}); err != nil {
		return fmt.Errorf("%w\nThe files in %s are complete. Correct git, then commit them to the branch template, and begin main there", err, a.dir)
	}
	next := []string{"go run ./cmd/dev", "go test ./..."}
	if inWorkspace(ctx, target) {
		next = append([]string{"go work use ."}, next...)
	}
	_, err = fmt.Fprintf(stdout, "\n%s is ready after %.0f s. %s", a.Service, time.Since(began).Seconds(), nextSteps(a.dir, next...))
	return err
}

// renderer makes one service.
type renderer struct {
	ctx     context.Context //nolint:containedctx // of one run
	from    template
	options options
	dir     string
	// generated reports whether cmd/entity has run the generators.
	generated bool
}

// copy copies the committed files with their new names.
func (r *renderer) copy() error {
	files, err := r.from.files(r.ctx)
	if err != nil {
		return err
	}
	if r.options.offered, err = r.from.optionNames(); err != nil {
		return err
	}
	var left []string // the paths that are left out
	without := r.options.without()
	for _, part := range without {
		left = append(left, filesOnlyOf(part, without)...)
		left = append(left, devDir+"/"+part+".go", devDir+"/"+part+"_test.go")
	}
	for _, name := range r.options.withoutOptions() {
		left = append(left, optionsDir+"/"+name, devDir+"/"+name+".go", devDir+"/"+name+"_test.go")
	}
	if !r.options.Full {
		left = append(append(left, exampleFiles...), wordTest...)
	}
	left = append(left, notCopied...)
	for _, name := range files {
		if isBelow(name, left) {
			continue
		}
		if strings.HasPrefix(name, kit) {
			if err := r.copyKit(name); err != nil {
				return err
			}
			continue
		}
		if err := r.copyFile(name, left); err != nil {
			return err
		}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(record{recordForm, r.from.commit, r.from.url, r.options}); err != nil {
		return err
	}
	return r.write("template.json", text.Bytes(), 0o644)
}

func (r *renderer) copyFile(name string, left []string) error {
	path := filepath.Join(r.from.root, name)
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path) //nolint:gosec // a file that git lists
	if err != nil {
		return err
	}
	if filepath.Ext(name) != ".binpb" && filepath.Ext(name) != ".svg" {
		text, err := unmark(string(content), r.options.without())
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if !r.options.Full && isOfExample(name, text) {
			return nil
		}
		if !r.options.Full && lists[name] != "" {
			text = strings.Replace(text, lists[name], "", 1)
		}
		if filepath.Ext(name) == ".md" {
			text = unlink(name, withoutOptionLines(text, r.options.withoutOptions()), left)
		}
		if name == optionsList || name == devList {
			text = withoutOptions(text, append(r.options.without(), r.options.withoutOptions()...))
		}
		text = kitPath.ReplaceAllString(r.options.rename(name, text), "${1}${3}third_party/kit${2}")
		switch name {
		case "README.md":
			text = r.introduce(text, "## Run it", introduction)
			text = strings.Replace(text, "("+license+")", "("+licenseCopy+") of the template that this service was made from", 1)
		case "README.zh-CN.md":
			text = r.introduce(text, "## 运行", introductionZH)
			text = strings.Replace(text, "("+license+")", "("+licenseCopy+")", 1)
		case license:
			name = licenseCopy
		}
		if !r.options.Full {
			text = strings.ReplaceAll(text, exampleBody, bodyOf(r.options.Fields))
		}
		text = forget(forget(text, "cmd/new"), "lab/programs.sh")
		if !r.options.Full {
			text = forget(text, "testdata/words.txt")
		}
		content = []byte(text)
	}
	return r.write(r.options.renamePath(name), content, info.Mode().Perm())
}

// kit is the folder of the module of tools.
const kit = "kit/"

// kitPath matches that folder in a text, where it begins a path.
var kitPath = regexp.MustCompile(`(?m)((?:^|[^\w/.-])(?:\.\.?/)*)kit(/)|((?:^|[^\w/.-])(?:\.\.?/)+)kit$`)

// copyKit copies a file of the kit, without new names: a service uses the kit, and changes nothing
// there. It does not copy tests of the kit.
func (r *renderer) copyKit(name string) error {
	if strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/testdata/") || strings.Contains(name, "/conformance/") {
		return nil
	}
	content, err := os.ReadFile(filepath.Join(r.from.root, name)) //nolint:gosec // a file that git lists
	if err != nil {
		return err
	}
	if path.Ext(name) == ".md" {
		text, err := unmark(string(content), r.options.without())
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		content = []byte(unlink(name, text, []string{"kit/pubsublocal/conformance"}))
	}
	return r.write("third_party/"+name, content, 0o644)
}

func (r *renderer) write(name string, content []byte, mode os.FileMode) error {
	to := filepath.Join(r.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // a folder of sources
		return err
	}
	return os.WriteFile(to, content, mode) //nolint:gosec // a file that git lists, in the new folder
}

// isBelow reports whether a file is one of the paths, or in one of them. A star in a path
// stands for any part of a name.
func isBelow(name string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool {
		matches, err := path.Match(p, name)
		return err == nil && matches || strings.HasPrefix(name, p+"/")
	})
}

// The names of the template, the longer ones first.
const given = `example\.com/videocatalog|videocatalog\.example\.com|com\.example\.videocatalog|VideoCatalog|VIDEOCATALOG|video_catalog|videocatalog`

// replaced matches the untouched words in the first group, which stay, then the names and the
// words of the example, which are replaced.
var replaced = regexp.MustCompile(`(` + untouched + `)|(` + regexp.QuoteMeta(exampleSubscription) + `|` + regexp.QuoteMeta(exampleTopic) + `|` + given + `)|` + example)

// rename replaces the names of the template in the text of a file, and the words of the example unless the
// service is full. It replaces no part of a longer word.
func (a options) rename(file, text string) string {
	var inCode [][]int // the places of code in a page
	if path.Ext(file) == ".md" {
		inCode = codeOf.FindAllStringIndex(text, -1)
	}
	var out strings.Builder
	end := 0
	for _, at := range replaced.FindAllStringSubmatchIndex(text, -1) {
		old, before := text[at[0]:at[1]], text[end:at[0]]
		for len(inCode) > 0 && inCode[0][1] <= at[0] {
			inCode = inCode[1:]
		}
		switch {
		case at[2] >= 0, at[4] >= 0 && isPart(text, at, old), at[4] < 0 && a.Full:
			continue
		case at[4] >= 0:
			out.WriteString(before + a.newName(old))
		default:
			word, ok := words{a.Entity, a.Plural}.replace(old, text[:at[0]], text[at[1]:], len(inCode) > 0 && inCode[0][0] < at[0])
			if !ok {
				continue
			}
			out.WriteString(withArticle(before, word) + word)
		}
		end = at[1]
	}
	out.WriteString(text[end:])
	return out.String()
}

// isPart reports whether a name is part of a longer word. Names of Go may go on with a
// capital letter.
func isPart(text string, at []int, old string) bool {
	isLower := func(b byte) bool { return b >= 'a' && b <= 'z' || b >= '0' && b <= '9' }
	before := at[0] > 0 && isLower(text[at[0]-1])
	after := at[1] < len(text) && isLower(text[at[1]])
	return after || before && old != "VideoCatalog"
}

// renamePath returns the path of a file in the new service.
func (a options) renamePath(name string) string {
	return a.rename("", name)
}

func (a options) newName(old string) string {
	switch old {
	case "example.com/videocatalog":
		return a.Module
	case "videocatalog.example.com":
		return a.Domain
	case "com.example.videocatalog":
		parts := strings.Split(strings.ReplaceAll(a.Domain, "-", "_"), ".")
		slices.Reverse(parts)
		return strings.Join(parts, ".")
	case "VideoCatalog": // what sqlc makes of the schema: it writes ID, not Id
		return pascal(strings.Trim(strings.ReplaceAll("_"+a.Schema+"_", "_id_", "_ID_"), "_"))
	case exampleTopic:
		return a.topic()
	case exampleSubscription:
		return a.subscription()
	case "VIDEOCATALOG":
		return strings.ToUpper(a.Schema)
	case "video_catalog":
		return a.Schema
	default:
		return a.Service
	}
}

// introduce replaces what a README says before a heading.
func (r *renderer) introduce(text, heading, introduction string) string {
	_, rest, ok := strings.Cut(text, "\n"+heading+"\n")
	if !ok {
		return text
	}
	purpose := r.options.Purpose
	if purpose != "" {
		purpose += "\n\n"
	}
	return fmt.Sprintf(introduction, r.options.Service, purpose) + heading + "\n" + rest
}

// section matches the section of CONTRIBUTING.md about this command.
var section = regexp.MustCompile(`(?s)## A service of your own\n.*?\n(## )`)

// forget removes what only the template needs: the section about this command, and the lines with
// the path of a file that is not copied.
func forget(text, path string) string {
	text = section.ReplaceAllString(text, "$1")
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, path) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

const introduction = `# %[1]s

%[2]s%[1]s serves gRPC and REST on Cloud Run, writes PostgreSQL, and publishes events to Pub/Sub: none is lost, none takes effect twice, and
those of one aggregate are applied in order. [docs/guarantees.md](docs/guarantees.md) says what holds and where it ends.

`

const introductionZH = `# %[1]s

[English](README.md)

%[2]s%[1]s 在 Cloud Run 上提供 gRPC 和 REST，写入 PostgreSQL，并向 Pub/Sub 发布事件：不丢失、不重复生效，同一聚合的事件按顺序生效。承诺及其边界见 [docs/guarantees.md](docs/guarantees.md)。

`

// link matches a link of Markdown to a file.
var link = regexp.MustCompile(`\[([^\]]*)\]\(([^):#]+)(#[^)]*)?\)`)

// unlink removes from a page the rows of tables and the points of lists that have a link to what is
// left out. Elsewhere such a link becomes plain text, or is removed if it follows a link in a list of links.
func unlink(page, text string, left []string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		plain := unlinkLine(path.Dir(page), line, left)
		if plain == line || !item.MatchString(line) {
			kept.WriteString(plain)
		}
	}
	return kept.String()
}

func unlinkLine(dir, line string, left []string) string {
	out, end := "", 0
	for _, at := range link.FindAllStringSubmatchIndex(line, -1) {
		if !isBelow(path.Join(dir, line[at[4]:at[5]]), left) {
			continue
		}
		out += line[end:at[0]]
		end = at[1]
		if list := separator.FindStringSubmatch(out); list != nil {
			out = strings.TrimSuffix(out, list[1])
		} else {
			out += line[at[2]:at[3]]
		}
	}
	return out + line[end:]
}

// item matches a row of a table, or a point of a list.
var item = regexp.MustCompile(`^(\||- |[0-9]+\. )`)

// separator matches what is between two links of a list, behind the first one.
var separator = regexp.MustCompile(`\)(, |、| · )$`)
