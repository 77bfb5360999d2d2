package check

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// module is what the files of a directory declare and use.
type module struct {
	variables map[string]bool // variables by name, and whether each is required
	outputs   map[string]bool
	declared  map[string]bool // for example "var.project", "module.iam", "google_pubsub_topic.events"
	calls     []call
	uses      []use
}

// call is a module block.
type call struct {
	at     hcl.Range
	name   string
	source string
	given  []string
}

// use is a reference.
type use struct {
	at    hcl.Range
	names []string // for example module, iam, emails
}

// language are the first names of references that Terraform itself defines.
var language = []string{"path", "each", "count", "self", "terraform"}

// parseModule reads the files of a directory.
func parseModule(dir string) (*module, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.tf"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no *.tf", dir)
	}
	m := &module{variables: map[string]bool{}, outputs: map[string]bool{}, declared: map[string]bool{}}
	for _, name := range files {
		source, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if err := m.add(source, name); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *module) add(source []byte, name string) error {
	file, diagnostics := hclparse.NewParser().ParseHCL(source, name)
	if diagnostics.HasErrors() {
		return diagnostics
	}
	for _, block := range file.Body.(*hclsyntax.Body).Blocks {
		switch block.Type {
		case "variable":
			_, optional := block.Body.Attributes["default"]
			m.variables[block.Labels[0]] = !optional
			m.declared["var."+block.Labels[0]] = true
		case "output":
			m.outputs[block.Labels[0]] = true
		case "locals":
			for local := range block.Body.Attributes {
				m.declared["local."+local] = true
			}
		case "module":
			c := call{at: block.Range(), name: block.Labels[0]}
			for argument, attribute := range block.Body.Attributes {
				value, _ := attribute.Expr.Value(nil)
				if argument == "source" {
					c.source = value.AsString()
				} else if !slices.Contains(meta, argument) {
					c.given = append(c.given, argument)
				}
			}
			m.calls = append(m.calls, c)
			m.declared["module."+c.name] = true
		case "resource":
			m.declared[block.Labels[0]+"."+block.Labels[1]] = true
		case "data":
			m.declared["data."+block.Labels[0]+"."+block.Labels[1]] = true
		}
		m.read(block.Body, nil)
	}
	return nil
}

// read collects the references in a body. It ignores the iterators of the dynamic blocks around it.
func (m *module) read(body *hclsyntax.Body, iterators []string) {
	for _, attribute := range body.Attributes {
		for _, traversal := range attribute.Expr.Variables() {
			names := []string{traversal.RootName()}
			for _, step := range traversal[1:] {
				if step, ok := step.(hcl.TraverseAttr); ok {
					names = append(names, step.Name)
				}
			}
			// The type of a variable is a bare word such as string, and not a reference.
			bare := len(names) == 1 && attribute.Name == "type"
			if !bare && !slices.Contains(language, names[0]) && !slices.Contains(iterators, names[0]) {
				m.uses = append(m.uses, use{traversal.SourceRange(), names})
			}
		}
	}
	for _, block := range body.Blocks {
		inner := iterators
		if block.Type == "dynamic" {
			inner = append(slices.Clone(iterators), block.Labels[0])
		}
		m.read(block.Body, inner)
	}
}

// references returns the errors between modules: references to nothing, and missing or unknown module variables.
func references(root *module, modules map[string]*module) []string {
	var found []string
	for _, c := range root.calls {
		called, ok := modules[c.source]
		if !ok {
			found = append(found, fmt.Sprintf("%s: there is no module %s", c.at, c.source))
			continue
		}
		for _, argument := range c.given {
			if _, ok := called.variables[argument]; !ok {
				found = append(found, fmt.Sprintf("%s: module %s has no variable %s", c.at, c.name, argument))
			}
		}
		for _, variable := range slices.Sorted(maps.Keys(called.variables)) {
			if called.variables[variable] && !slices.Contains(c.given, variable) {
				found = append(found, fmt.Sprintf("%s: module %s wants %s", c.at, c.name, variable))
			}
		}
	}
	for _, u := range root.uses {
		length := 2
		if u.names[0] == "data" {
			length = 3
		}
		if len(u.names) < length || !root.declared[strings.Join(u.names[:length], ".")] {
			found = append(found, fmt.Sprintf("%s: %s is not declared", u.at, strings.Join(u.names, ".")))
			continue
		}
		for _, c := range root.calls {
			if called := modules[c.source]; u.names[0] == "module" && u.names[1] == c.name && len(u.names) > 2 && called != nil && !called.outputs[u.names[2]] {
				found = append(found, fmt.Sprintf("%s: module %s has no output %s", u.at, c.name, u.names[2]))
			}
		}
	}
	return found
}

// Every reference is declared, and each module gets its variables.
func TestReferencesLeadSomewhere(t *testing.T) {
	root, err := parseModule("..")
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := filepath.Glob("../modules/*")
	if err != nil {
		t.Fatal(err)
	}
	modules := map[string]*module{}
	for _, dir := range dirs {
		m, err := parseModule(dir)
		if err != nil {
			t.Fatal(err)
		}
		modules["./modules/"+filepath.Base(dir)] = m
		for _, problem := range references(m, nil) {
			t.Error(problem)
		}
		if len(m.uses) == 0 {
			t.Errorf("%s refers to nothing, want its variables to be used", dir)
		}
	}
	for _, problem := range references(root, modules) {
		t.Error(problem)
	}
	if len(root.calls) != len(modules) || len(root.uses) < 20 {
		t.Errorf("%d calls of %d modules, %d references, want each to be called, and more references", len(root.calls), len(modules), len(root.uses))
	}
}

// Bad references are found.
func TestBadReferencesAreFound(t *testing.T) {
	parse := func(source string) *module {
		m := &module{variables: map[string]bool{}, outputs: map[string]bool{}, declared: map[string]bool{}}
		if err := m.add([]byte(source), "test.tf"); err != nil {
			t.Fatal(err)
		}
		return m
	}
	modules := map[string]*module{"./iam": parse("variable \"project\" {\n type = string\n}\nvariable \"more\" {\n default = 1\n}\noutput \"email\" {\n value = var.project\n}")}
	const good = "variable \"project\" {\n type = string\n}\nmodule \"iam\" {\n source = \"./iam\"\n project = var.project\n}\n"
	for _, test := range []struct{ name, source, want string }{
		{"nothing wrong", good + "locals {\n a = [for x in [1] : x]\n b = local.a\n c = module.iam.email\n}", ""},
		{"a dynamic block", good + "resource \"r\" \"n\" {\n dynamic \"env\" {\n for_each = {}\n content {\n name = env.key\n }\n }\n}", ""},
		{"an iterator elsewhere", good + "locals {\n a = env.key\n}", "env.key is not declared"},
		{"no such variable", good + "locals {\n a = var.region\n}", "var.region is not declared"},
		{"no such local", good + "locals {\n a = local.b\n}", "local.b is not declared"},
		{"no such resource", good + "locals {\n a = google_pubsub_topic.events.id\n}", "google_pubsub_topic.events.id is not declared"},
		{"no such data", good + "locals {\n a = data.google_project.this.number\n}", "data.google_project.this.number is not declared"},
		{"no such output", good + "locals {\n a = module.iam.emails\n}", "module iam has no output emails"},
		{"no such module", "module \"iam\" {\n source = \"./iamb\"\n}", "there is no module ./iamb"},
		{"a variable too many", "module \"iam\" {\n source = \"./iam\"\n project = 1\n region = 1\n}", "module iam has no variable region"},
		{"a variable missing", "module \"iam\" {\n source = \"./iam\"\n}", "module iam wants project"},
	} {
		got := strings.Join(references(parse(test.source), modules), "\n")
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: found %q, want %q", test.name, got, test.want)
		}
	}
}
