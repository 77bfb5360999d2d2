package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/pg/pgtest"
)

var must = pgtest.Must

const (
	root = "../.."
	// patience is the time limit of a step on a busy machine.
	patience = 2 * time.Minute
)

// findChromium returns the path of Chromium; empty if it is not installed.
func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// stack is a running cmd/dev.
type stack struct{ api, console, database string }

// startStack starts cmd/dev, and publishes the films in examples.
func startStack(t *testing.T) *stack {
	t.Helper()
	program, state := filepath.Join(t.TempDir(), "dev"), t.TempDir()
	for dir := state; dir != os.TempDir(); dir = filepath.Dir(dir) { // for root, PostgreSQL runs as another user
		must(t, os.Chmod(dir, 0o755))
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/dev")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build cmd/dev: %v\n%s", err, out)
	}
	screen, err := os.Create(filepath.Join(state, "screen"))
	must(t, err)
	t.Cleanup(func() { _ = screen.Close() })
	cmd := exec.Command(program, "--state", state)
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, screen, screen
	settings := regexp.MustCompile(`^(PORT|ROLES|\w*DATABASE_URL|(PUBSUB|OUTBOX|CONSUMER|SERVER|TELEMETRY|CONSOLE)_\w+)=`)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), settings.MatchString), "PORT=0", "NO_COLOR=1")
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the test reads the screen
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	var text []byte
	pgtest.Eventually(t, patience, "cmd/dev runs", func() bool {
		if text, err = os.ReadFile(screen.Name()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
			t.Fatalf("cmd/dev ended:\n%s", text)
		default:
		}
		return strings.Contains(string(text), "Ctrl-C stops everything")
	})
	field := func(pattern string) string {
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil {
			t.Fatalf("no %s on the screen:\n%s", pattern, text)
		}
		return string(found[1])
	}
	s := &stack{api: field(`(http://localhost:\d+/)`), console: field(`console +(http://\S+/)`), database: field(`psql '(.*)'`)}
	films, err := os.ReadFile(filepath.Join(root, "examples", "films.jsonl"))
	must(t, err)
	for film := range strings.Lines(string(films)) {
		if _, err := s.publish(t.Context(), film); err != nil {
			t.Fatalf("%s: %v", film, err)
		}
	}
	return s
}

// write creates and publishes a video through the API.
func (s *stack) write(ctx context.Context, title string) (name string, err error) {
	return s.publish(ctx, fmt.Sprintf(`{"title":%q}`, title))
}

// publish creates and publishes a video in JSON.
func (s *stack) publish(ctx context.Context, video string) (name string, err error) {
	created, err := s.post(ctx, "v1/videos", video)
	if err == nil {
		_, err = s.post(ctx, "v1/"+created+":publish", "{}")
	}
	return created, err
}

func (s *stack) post(ctx context.Context, path, body string) (name string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.api+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("POST %s: %s", path, response.Status)
	}
	var answer struct{ Name string }
	err = json.NewDecoder(response.Body).Decode(&answer)
	return answer.Name, err
}

// exec runs SQL on the database of the service.
func (s *stack) exec(t *testing.T, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.database)
	must(t, err)
	defer conn.Close(t.Context())
	pgtest.Execute(t, conn, sql)
}

// trouble parks aggregates for two causes, and quarantines messages.
const trouble = `
	INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT 0, nextval('video_catalog.outbox_pending_seq_seq'), gen_random_uuid(), 'video', md5(n::text)::uuid::text, 'VideoUpdated', 3, 1, '', now() - interval '2 hours' FROM generate_series(1, 30) n;
	INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		SELECT 'video', md5(n::text)::uuid::text, n % 8, 10,
			CASE WHEN n < 25 THEN 'rpc error: code = InvalidArgument desc = the message has ' || 10485760 + n || ' bytes, at most 10485760 are allowed'
			ELSE 'rpc error: code = InvalidArgument desc = <b>an attribute</b> has too many bytes' END, now() - n * interval '3 minutes'
		FROM generate_series(1, 30) n;
	INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time)
		SELECT 'catalog', 'message-' || n, md5(n::text)::uuid::text, '{"event_type": "VideoRenamed", "aggregate_type": "video"}', '\x0a03616263120208ff01',
			'decode event: schema version ' || n || ' is newer than 1, the newest this build reads', now()
		FROM generate_series(2, 6) n`

// browser is a tab of Chromium. It collects what the browser complains about.
type browser struct {
	ctx context.Context //nolint:containedctx // chromedp keeps the tab in it

	mu         sync.Mutex
	complaints []string // guarded by mu
}

func openBrowser(t *testing.T, chromium string) *browser {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(chromium))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // as root, Chromium does not run with its sandbox
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{ctx: ctx}
	err := chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch event := event.(type) {
		case *runtime.EventExceptionThrown:
			b.complaints = append(b.complaints, event.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			if event.Entry.Level == log.EntryLevelError || event.Entry.Level == log.EntryLevelWarning {
				b.complaints = append(b.complaints, event.Entry.Text)
			}
		}
	})
	if err != nil {
		t.Fatalf("start %s: %v", chromium, err)
	}
	return b
}

// complained returns the complaints so far, and forgets them.
func (b *browser) complained() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.complaints
	b.complaints = nil
	return all
}

func (b *browser) do(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	must(t, chromedp.Do(ctx, steps...))
}

// eval returns the value of a script.
func eval[T any](t *testing.T, b *browser, script string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return value
}

// look opens a page in a window.
func (b *browser) look(t *testing.T, url string, width, height int64, scheme string) {
	t.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
	must(t, err)
	b.do(t, chromedp.EmulateViewport(width, height), chromedp.Navigate(url))
	pgtest.Eventually(t, patience, url+" is live", func() bool { return eval[bool](t, b, `!(document.querySelector("[data-zone]")?.hidden ?? true)`) })
}

// shoot writes a picture of the window.
func (b *browser) shoot(t *testing.T, path string) {
	t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(path, png, 0o644)
	}
	must(t, err)
}

// The console works in a browser. One stack serves all subtests, in this order.
func TestConsoleInABrowser(t *testing.T) {
	chromium := findChromium()
	if chromium == "" {
		t.Log("chromium is not installed, so nothing was looked at: apt-get install chromium")
		return
	}
	s := startStack(t)
	b := openBrowser(t, chromium)
	name, err := s.write(t.Context(), "<script>Ran</script>")
	must(t, err)
	t.Run("the page moves", func(t *testing.T) { moves(t, s, b) })
	t.Run("it pauses for good", func(t *testing.T) { pauses(t, s, b) })
	t.Run("it says that nothing comes", func(t *testing.T) { losesTheConsole(t, s, b) })
	t.Run("it has no dead button", func(t *testing.T) { worksWithoutScript(t, s, b) })
	s.exec(t, trouble)
	pages := []string{
		"", "stuck", "stuck?id=1", "audit", "aggregates", "aggregates?q=the", "none",
		"aggregates/video/" + strings.TrimPrefix(name, "videos/"),
	}
	t.Run("every page fits", func(t *testing.T) { fits(t, s, b, pages) })
	t.Run("the keyboard reaches everything", func(t *testing.T) { keyboardReaches(t, s, b, pages) })
	t.Run("the keyboard acts", func(t *testing.T) { keyboardActs(t, s, b) })
	for _, complaint := range b.complained() {
		if !strings.Contains(complaint, "404") { // of the page that is not there
			t.Errorf("the browser complains: %s", complaint)
		}
	}
	t.Run("the policy stops a script", func(t *testing.T) { policyStops(t, s, b) })
}

// moves checks that the page follows the service, and keeps the focus meanwhile.
func moves(t *testing.T, s *stack, b *browser) {
	b.look(t, s.console, 1280, 900, "light")
	eval[any](t, b, `document.querySelector(".writes a").focus()`)
	_, err := s.write(t.Context(), "Moving")
	must(t, err)
	pgtest.Eventually(t, patience, "the page shows a new write", func() bool {
		return strings.Contains(eval[string](t, b, `document.querySelector(".writes").textContent`), "Moving")
	})
	if !eval[bool](t, b, `document.activeElement.matches(".writes a")`) {
		t.Error("the page has lost the focus when it changed")
	}
}

// pauses checks that a pause stops the page, also after a reload, and that the key z changes the time zone.
func pauses(t *testing.T, s *stack, b *browser) {
	state := func() string { return eval[string](t, b, `document.querySelector("[data-pause]").dataset.state`) }
	b.do(t, chromedp.KeyEvent("p"))
	if got := state(); got != "paused" {
		t.Fatalf("after the key p the page is %s", got)
	}
	b.look(t, s.console, 1280, 900, "light")
	if got := state(); got != "paused" {
		t.Errorf("the next page is %s, want paused", got)
	}
	b.do(t, chromedp.Click("[data-pause]"))
	pgtest.Eventually(t, patience, "the page is live again", func() bool { return state() == "live" })
	utc := eval[string](t, b, `document.querySelector("[data-zone]").textContent`)
	b.do(t, chromedp.KeyEvent("z"))
	if local := eval[string](t, b, `document.querySelector("[data-zone]").textContent`); utc != "UTC" || local != "Local" {
		t.Errorf("the key z changes the zone from %s to %s", utc, local)
	}
	b.do(t, chromedp.KeyEvent("z"))
}

// losesTheConsole checks that a page does not wait for ever for a console that does not respond, and says so.
func losesTheConsole(t *testing.T, s *stack, b *browser) {
	b.look(t, s.console, 1280, 900, "light")
	eval[any](t, b, `window.fetch = (_, { signal }) => new Promise((_, fail) => signal.addEventListener("abort", () => fail(signal.reason)))`)
	at := eval[string](t, b, `document.querySelector("[data-part=at]").textContent`)
	pgtest.Eventually(t, patience, "the page is lost", func() bool { return eval[string](t, b, `document.querySelector("[data-pause]").textContent`) == "Lost" })
	if got := eval[string](t, b, `document.querySelector("[data-part=at]").textContent`); !strings.HasPrefix(got, "as of ") || got != at {
		t.Errorf("the lost page is %s, want still %s", got, at)
	}
}

// worksWithoutScript checks that a page without script has no button that needs it.
func worksWithoutScript(t *testing.T, s *stack, b *browser) {
	script := func(disabled bool) {
		t.Helper()
		_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: disabled})
		must(t, err)
		b.do(t, chromedp.Navigate(s.console))
	}
	script(true)
	if eval[bool](t, b, `[...document.querySelectorAll("button")].some((e) => e.checkVisibility())`) {
		t.Error("a button is visible without script")
	}
	script(false)
}

// fits checks that no page is wider than its window, and that it is light or dark as asked.
func fits(t *testing.T, s *stack, b *browser, pages []string) {
	for _, width := range []int64{360, 1280, 2560} {
		for _, scheme := range []string{"light", "dark"} {
			for _, page := range pages {
				b.look(t, s.console+page, width, 900, scheme)
				if wide := eval[int64](t, b, "document.documentElement.scrollWidth"); wide > width {
					t.Errorf("/%s is %d pixels wide in a window of %d", page, wide, width)
				}
				dark := eval[string](t, b, "getComputedStyle(document.body).backgroundColor") == "rgb(14, 18, 22)"
				if dark != (scheme == "dark") {
					t.Errorf("/%s is not %s", page, scheme)
				}
				if dir := os.Getenv("CONSOLE_SHOTS"); dir != "" { // for whoever changes the style
					b.shoot(t, filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", url.QueryEscape(page), width, scheme)))
				}
			}
		}
	}
}

// focusable returns the elements that a person can use, without the elements in a closed details element.
const focusable = `[...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, summary")].filter((e) => e.checkVisibility())`

// keyboardReaches checks that the key Tab leads to everything that can be used.
func keyboardReaches(t *testing.T, s *stack, b *browser, pages []string) {
	for _, page := range pages {
		b.look(t, s.console+page, 1280, 900, "light")
		b.do(t, chromedp.KeyEvent("p")) // so that the elements stay the same
		eval[any](t, b, `window.reached = new Set(); document.activeElement.blur(); addEventListener("focusin", (e) => reached.add(e.target))`)
		for range eval[int](t, b, focusable+".length") + 2 {
			b.do(t, chromedp.KeyEvent(kb.Tab))
		}
		missed := eval[[]string](t, b, focusable+`.filter((e) => !reached.has(e)).map((e) => e.outerHTML)`)
		if len(missed) > 0 {
			t.Errorf("on /%s the key Tab does not reach %q", page, missed)
		}
		b.do(t, chromedp.KeyEvent("p"))
	}
}

// keyboardActs retries a group without the mouse.
func keyboardActs(t *testing.T, s *stack, b *browser) {
	b.look(t, s.console+"stuck", 1280, 900, "light")
	eval[any](t, b, `document.querySelector("button[value='retry']").focus()`)
	b.do(t, chromedp.KeyEvent(kb.Enter))
	pgtest.Eventually(t, patience, "the console asks, with the focus in the field", func() bool {
		return eval[bool](t, b, `document.activeElement?.matches("input[name=reason]") ?? false`)
	})
	if question := eval[string](t, b, `document.querySelector(".question").textContent`); question != "Retry 24?" {
		t.Errorf("the console asks %q", question)
	}
	b.do(t, chromedp.KeyEvent("the limit was raised"), chromedp.KeyEvent(kb.Enter))
	pgtest.Eventually(t, patience, "the audit has the action", func() bool {
		return eval[bool](t, b, `location.pathname === "/audit" && (document.querySelector("td.n")?.textContent === "24")`)
	})
	eval[any](t, b, "history.back()")
	pgtest.Eventually(t, patience, "Back leads to the count", func() bool {
		return eval[bool](t, b, `location.pathname === "/actions" && document.querySelector(".question") !== null`)
	})
}

// policyStops checks that the content security policy stops a script, and that b collects the complaint.
func policyStops(t *testing.T, s *stack, b *browser) {
	b.look(t, s.console, 1280, 900, "light")
	eval[any](t, b, `{ const e = document.createElement("script"); e.textContent = "window.ran = true"; document.body.append(e) }`)
	if eval[bool](t, b, "window.ran === true") {
		t.Error("an inline script ran")
	}
	pgtest.Eventually(t, patience, "the browser complains", func() bool {
		return strings.Contains(strings.Join(b.complained(), "\n"), "Content Security Policy")
	})
}
