package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// field is an argument or a block of a resource.
type field struct {
	Required bool
	Block    map[string]field // nil for an argument
}

// meta are the arguments and blocks that every resource may have.
var meta = []string{"for_each", "count", "depends_on", "provider", "lifecycle", "provisioner"}

func schema(t *testing.T) map[string]map[string]field {
	t.Helper()
	data, err := os.ReadFile("testdata/schema.json")
	if err != nil {
		t.Fatalf("read schema: %v", err)
	}
	var file struct{ Resources map[string]map[string]field }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatalf("parse schema: %v", err)
	}
	return file.Resources
}

// problems returns the errors in the resources of a file.
func problems(source []byte, name string, schema map[string]map[string]field) []string {
	file, diagnostics := hclparse.NewParser().ParseHCL(source, name)
	if diagnostics.HasErrors() {
		return []string{diagnostics.Error()}
	}
	var found []string
	for _, block := range file.Body.(*hclsyntax.Body).Blocks {
		if block.Type != "resource" && block.Type != "data" || block.Labels[0] == "terraform_data" { // terraform_data is built in
			continue
		}
		kind := block.Type + " " + block.Labels[0]
		fields, ok := schema[kind]
		if !ok {
			found = append(found, fmt.Sprintf("%s: %s is not in the schema", block.Range(), kind))
			continue
		}
		found = append(found, compare(block.Body, block.Range(), kind, fields)...)
	}
	return found
}

// compare returns the errors in a body.
func compare(body *hclsyntax.Body, at hcl.Range, kind string, fields map[string]field) []string {
	var found []string
	wrong := func(at hcl.Range, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s: %s: %s", at, kind, fmt.Sprintf(format, args...)))
	}
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(body.Attributes)) {
		seen[name] = true
		f, ok := fields[name]
		switch {
		case slices.Contains(meta, name):
		case !ok:
			wrong(body.Attributes[name].Range(), "there is no argument %s", name)
		case f.Block != nil:
			wrong(body.Attributes[name].Range(), "%s is a block, not an argument", name)
		}
	}
	for _, block := range body.Blocks {
		name, inner := block.Type, block.Body
		if name == "dynamic" {
			name = block.Labels[0]
			for _, content := range inner.Blocks {
				inner = content.Body
			}
		}
		seen[name] = true
		f, ok := fields[name]
		switch {
		case slices.Contains(meta, name):
		case !ok:
			wrong(block.Range(), "there is no block %s", name)
		case f.Block == nil:
			wrong(block.Range(), "%s is an argument, not a block", name)
		default:
			found = append(found, compare(inner, block.Range(), kind+"."+name, f.Block)...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if fields[name].Required && !seen[name] {
			wrong(at, "%s is required", name)
		}
	}
	return found
}

// Every file fits the schema of the provider.
func TestFilesFitTheProvider(t *testing.T) {
	fields := schema(t)
	used := map[string]bool{}
	files := 0
	for _, pattern := range []string{"../*.tf", "../modules/*/*.tf"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			files++
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatalf("read: %v", err)
			}
			for _, problem := range problems(source, name, fields) {
				t.Error(problem)
			}
			for kind := range fields {
				words := strings.Fields(kind)
				if strings.Contains(string(source), fmt.Sprintf("%s %q", words[0], words[1])) {
					used[kind] = true
				}
			}
		}
	}
	if files < 8 {
		t.Errorf("%d files, want the root module's and those of four modules", files)
	}
	for kind := range fields {
		if !used[kind] {
			t.Errorf("the schema has %s, which nobody uses", kind)
		}
	}
}

// Errors are found.
func TestMistakesAreFound(t *testing.T) {
	fields := schema(t)
	const good = `name = "a"` + "\n" + `topic = "t"`
	for _, test := range []struct{ name, body, want string }{
		{"nothing wrong", good, ""},
		{"a misspelled argument", good + "\nack_deadline = 10", "no argument ack_deadline"},
		{"a misspelled block", good + "\ndead_letters {}", "no block dead_letters"},
		{"a block as an argument", good + "\nretry_policy = {}", "retry_policy is a block"},
		{"an argument as a block", good + "\nfilter {}", "filter is an argument"},
		{"a required argument missing", `name = "a"`, "topic is required"},
		{"a mistake in a dynamic block", good + "\n" + `dynamic "retry_policy" {
			for_each = [1]
			content { minimum = "1s" }
		}`, "no argument minimum"},
		{"no HCL", good + "\n}", "Argument or block definition required"},
	} {
		source := "resource \"google_pubsub_subscription\" \"s\" {\n" + test.body + "\n}\n"
		got := strings.Join(problems([]byte(source), "test.tf", fields), "\n")
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: found %q, want %q", test.name, got, test.want)
		}
	}
	if got := problems([]byte(`resource "google_pubsub_subscriptions" "s" {}`), "test.tf", fields); len(got) != 1 {
		t.Errorf("an unknown resource: found %q, want one problem", got)
	}
}

// The files are formatted like terraform fmt does it. Without an installed terraform the test compares nothing, and
// logs that.
func TestFilesAreFormatted(t *testing.T) {
	if _, err := exec.LookPath("terraform"); err != nil {
		t.Logf("%v: nothing is compared", err)
		return
	}
	out, err := exec.CommandContext(t.Context(), "terraform", "fmt", "-check", "-diff", "-recursive", "..").CombinedOutput()
	if err != nil {
		t.Errorf("terraform fmt: %v\n%s", err, out)
	}
}
