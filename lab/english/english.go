// Package english finds habits in comments and pages that stop readers whose first language is not
// English: a pronoun for a noun that was not said, and a clause without a noun as a subject.
package english

import (
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"strings"
)

// habits are the forbidden patterns, each with advice.
var habits = []struct {
	words  *regexp.Regexp
	advice string
}{
	{regexp.MustCompile(`(?i)\b(that|those) of\b`), "repeat the noun"},
	{regexp.MustCompile(`(?i)\b(does|do|did|done|doing) so\b`), "repeat the verb"},
	{regexp.MustCompile(`(?i)[,;] so (is|are|was|were|does|do|has|have)\b`), "repeat the statement"},
	{regexp.MustCompile(`(?i)\bup to how (many|much)\b`), "say the largest number"},
	{regexp.MustCompile(`(^|[.!?] )What [^?]*(\.|$)`), "begin with a noun"},
}

// Mistake is a place with a habit.
type Mistake struct {
	Line         int
	Text, Advice string
}

// Mistakes returns the mistakes in the comments of a file of Go, SQL or protobuf, or in the sentences
// of a page.
func Mistakes(name, source string) []Mistake {
	var all []Mistake
	for _, p := range paragraphs(name, source) {
		for _, h := range habits {
			for _, at := range h.words.FindAllStringIndex(p.text, -1) {
				end := min(len(p.text), at[0]+60)
				all = append(all, Mistake{p.line, strings.ToValidUTF8(p.text[at[0]:end], ""), h.advice})
			}
		}
	}
	return all
}

// paragraph is a comment, or a paragraph of a page, on one line.
type paragraph struct {
	line int
	text string
}

func paragraphs(name, source string) []paragraph {
	switch path.Ext(name) {
	case ".go":
		return comments(source)
	case ".md":
		return sentences(source)
	case ".sql":
		return lines(source, "-- ")
	case ".proto":
		return lines(source, "// ")
	}
	return nil
}

// comments returns the paragraphs of the comments of a file of Go.
func comments(source string) []paragraph {
	var text strings.Builder
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(source))
	s.Init(file, []byte(source), nil, scanner.ScanComments)
	line := 1
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return lines(text.String(), "// ")
		}
		if at := file.Line(pos); tok == token.COMMENT && strings.HasPrefix(literal, "// ") {
			text.WriteString(strings.Repeat("\n", at-line) + literal)
			line = at
		}
	}
}

// lines joins neighboring lines that begin with a marker.
func lines(source, marker string) []paragraph {
	var all []paragraph
	isOpen := false
	n := 0
	for line := range strings.Lines(source) {
		n++
		text, ok := strings.CutPrefix(strings.TrimSpace(line), marker)
		switch {
		case !ok || strings.HasPrefix(text, "# "):
			isOpen = false
		case isOpen:
			all[len(all)-1].text += " " + text
		default:
			all, isOpen = append(all, paragraph{n, text}), true
		}
	}
	return all
}

// code matches examples and code in a page.
var code = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")

// sentences returns the lines of a page without headings. Examples and code become an x.
func sentences(source string) []paragraph {
	blank := func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) + "x" }
	var all []paragraph
	n := 0
	for line := range strings.Lines(code.ReplaceAllStringFunc(source, blank)) {
		n++
		if text := strings.TrimSpace(line); !strings.HasPrefix(text, "#") {
			all = append(all, paragraph{n, strings.TrimLeft(text, "-| ")})
		}
	}
	return all
}
