package dev

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// style is a text style, as a parameter of the escape sequence SGR (ECMA-48,
// 8.3.117).
type style string

const (
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
)

// screen prints permanent lines and, on a terminal, a status line below them
// that is overwritten. Without a terminal it prints text without control
// characters. It is safe for concurrent use, except begin and done.
type screen struct {
	terminal *os.File // nil: the output is not a terminal
	color    bool
	lost     func() // called when a write fails

	mu     sync.Mutex
	out    io.Writer
	status string // the status line
	began  time.Time
}

func newScreen(out io.Writer, getenv func(string) string, lost func()) *screen {
	s := &screen{out: out, lost: lost}
	file, ok := out.(*os.File)
	if ok && getenv("TERM") != "dumb" && width(file) > 0 {
		s.terminal = file
		s.color = getenv("NO_COLOR") == "" // https://no-color.org
	}
	return s
}

// width returns the number of columns of a terminal, or 0 if file is not a
// terminal.
func width(file *os.File) int {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	switch {
	case err != nil:
		return 0
	case size.Col == 0: // unknown
		return 80
	}
	return int(size.Col)
}

// columns returns the maximum length of a line.
func (s *screen) columns() int {
	if s.terminal == nil {
		return 160
	}
	return max(40, width(s.terminal))
}

func (s *screen) paint(style style, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}

// print prints permanent lines.
func (s *screen) print(lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(lines, "\n") + "\n"
	if s.status != "" {
		text = "\r\x1b[K" + text + s.paint(dim, s.status)
	}
	s.write(text)
}

// update replaces the status line; "" removes it.
func (s *screen) update(status string) {
	if s.terminal == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status = shorten(status, s.columns()-1)
	if status != s.status {
		s.status = status
		s.write("\r\x1b[K" + s.paint(dim, status))
	}
}

// write writes to out. The caller must hold mu.
func (s *screen) write(text string) {
	if _, err := io.WriteString(s.out, text); err != nil {
		s.lost()
	}
}

// begin shows in the status line that a step has begun. The step ends with done
// or with the next begin.
func (s *screen) begin(doing string) {
	s.began = time.Now()
	s.update("  … " + doing)
}

// done prints the result of the step and its duration since begin.
func (s *screen) done(what, result string) {
	took := fmt.Sprintf("%.1f s", time.Since(s.began).Seconds())
	s.update("")
	s.row("✓", what, result+"  "+s.paint(dim, took))
}

// row prints a line of a table.
func (s *screen) row(mark, name, value string) {
	s.print(fmt.Sprintf("  %s %s %s", s.paint(green, mark), s.paint(bold, fmt.Sprintf("%-10s", name)), value))
}

// warn prints one highlighted line with the time.
func (s *screen) warn(style style, text string) {
	const mark = "  ! "
	clock := time.Now().Format(time.TimeOnly)
	s.print(s.paint(style, mark+clock+" "+shorten(text, s.columns()-len(mark)-len(clock)-2)))
}

// shorten returns text as one line of at most length characters.
func shorten(text string, length int) string {
	clean := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if runes := []rune(clean); len(runes) > length {
		return string(runes[:max(0, length-1)]) + "…"
	}
	return clean
}

// present prints the addresses of all parts, and commands to try.
func (s *Stack) present() {
	_, port, _ := strings.Cut(s.addr, ":")
	host := "localhost:" + port
	psql := "psql \"$DATABASE_URL\"" // do not print it, it may have a password
	if s.getenv("DATABASE_URL") == "" {
		psql = "psql '" + s.Database + "'"
	}
	s.screen.print("")
	if s.allowed != "" {
		s.screen.warn(yellow, "The server and Pub/Sub listen on all interfaces, and nobody is authenticated.")
	}
	for _, row := range append([][2]string{
		{"REST", "http://" + host + "/v1, described by http://" + host + "/openapi.json"},
		{"gRPC", host + ", with reflection"},
		{"health", "http://" + host + "/health/ready"},
		{"PostgreSQL", psql},
		{"Pub/Sub", "PUBSUB_EMULATOR_HOST=" + s.pubsub + ", project " + s.project},
		{"commands", ". " + s.short(filepath.Join(s.State, "env")) + " && " + s.short(s.Server) + " status"},
		{"log", s.short(s.log("server"))},
	}, s.rows...) {
		s.screen.row(" ", row[0], row[1])
	}
	s.screen.print("", "Try, in another terminal:")
	for _, try := range append(s.config.Try, "grpcurl -plaintext HOST list") {
		s.screen.print("  " + s.screen.paint(cyan, strings.ReplaceAll(try, "HOST", host)))
	}
	s.screen.print("  "+s.screen.paint(dim, "(go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4 brings grpcurl)"), "", "Ctrl-C stops everything.")
}
