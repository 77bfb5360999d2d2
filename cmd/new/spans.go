package main

import (
	"go/scanner"
	"go/token"
	"path"
	"strings"
)

// span is a part of a file, up to an offset.
type span struct {
	end  int
	kind kind
}

// spans divides a file into parts of one kind each.
func spans(name, source string) []span {
	ext := path.Ext(name)
	switch ext {
	case ".go":
		return goSpans(source)
	case ".md":
		return markdownSpans(source)
	case ".yaml", ".yml", ".json", ".jsonl", ".tf", ".tmpl", ".html":
		return lineSpans(source, "#", text)
	case ".proto":
		return lineSpans(source, "//", code)
	case ".sql":
		return lineSpans(source, "--", code)
	}
	return lineSpans(source, "#", code)
}

// goSpans divides a file of Go by its tokens.
func goSpans(source string) []span {
	var all []span
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(source))
	s.Init(file, []byte(source), nil, scanner.ScanComments)
	for {
		pos, tok, literal := s.Scan()
		start := file.Offset(pos)
		switch tok {
		case token.EOF:
			return append(all, span{len(source), golang})
		case token.COMMENT:
			all = append(all, span{start, golang}, span{start + len(literal), prose})
		case token.STRING:
			k := text
			if literal[0] == '`' && strings.Contains(literal, "\n") {
				k = code // SQL, protobuf, YAML
			}
			all = append(all, span{start, golang}, span{start + len(literal), k})
		default:
		}
	}
}

// markdownSpans divides a page into prose, examples and spans of code.
func markdownSpans(source string) []span {
	var all []span
	fence, inFence, end := code, false, 0
	for line := range strings.Lines(source) {
		if language, ok := strings.CutPrefix(strings.TrimSpace(line), "```"); ok {
			inFence, fence = !inFence, code
			if language == "go" {
				fence = golang
			}
		} else if !inFence {
			at := end
			for i, part := range strings.Split(line, "`") {
				at = min(at+len(part)+1, end+len(line))
				all = append(all, span{at, []kind{prose, code}[i%2]})
			}
		}
		end += len(line)
		if inFence {
			all = append(all, comment(line, end, "#", fence)...)
		} else {
			all = append(all, span{end, prose})
		}
	}
	return all
}

// lineSpans divides a file by its line comments and its strings.
func lineSpans(source, marker string, k kind) []span {
	var all []span
	end := 0
	for line := range strings.Lines(source) {
		end += len(line)
		all = append(all, comment(line, end, marker, k)...)
	}
	return all
}

// comment divides one line, which ends at the offset end, into code, strings and a comment.
func comment(line string, end int, marker string, k kind) []span {
	start, rest := end-len(line), end
	if i := strings.Index(line, marker); i == 0 || i > 0 && strings.ContainsRune(" \t", rune(line[i-1])) {
		rest = start + i
	}
	var all []span
	quote := byte(0)
	for i := start; i < rest; i++ {
		c := line[i-start]
		switch {
		case quote == 0 && (c == '"' || c == '\''):
			all, quote = append(all, span{i + 1, k}), c
		case quote == c:
			all, quote = append(all, span{i, text}), 0
		}
	}
	last := k
	if quote == '"' {
		last = text
	}
	return append(all, span{rest, last}, span{end, prose})
}
