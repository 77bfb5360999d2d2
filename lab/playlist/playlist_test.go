package playlist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/lab/internal/clone"
)

const root = "../.."

// A second aggregate costs new files only. It has its own topic, schema, subscription and
// projection, and the machinery is not touched.
func TestSecondAggregate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "clone")
	clone.Tree(t, root, dir, "lab")
	checkCost(t, addFiles(t, dir))

	clone.Run(t, dir, "make", "--silent", "generate")
	clone.Run(t, dir, "go", "vet", "./api/...", "./cmd/...", "./db/...", "./internal/...")
	clone.Run(t, dir, "go", "test", "./internal/archtest", "./internal/names/...", "./cmd/server/generate", "./db")
	clone.Run(t, dir, "go", "test", "./cmd/server", "-run", "TestSubscriptionsAreInNames")
	clone.Run(t, dir, "go", "test", "./internal/store", "-run", "TestRolesHaveLeastPrivilege|TestDataAPISeesNothing|TestSupportRoleLooks")

	api := startStack(t, dir)
	usePlaylist(t, api)
	useVideo(t, api)
}

// checkCost holds CONTRIBUTING.md to what it says of the cost.
func checkCost(t *testing.T, added int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d new files, and no line in a file that exists", added); !strings.Contains(strings.Join(strings.Fields(string(text)), " "), want) {
		t.Errorf("CONTRIBUTING.md does not say what a second aggregate costs: %s", want)
	}
}

// usePlaylist changes a playlist, and awaits what its events make of it.
func usePlaylist(t *testing.T, api string) {
	t.Helper()
	created := call(t, http.StatusOK, "POST", api+"/v1/playlists", `{"title": "Samurai"}`)
	name, _ := created["name"].(string)
	view := api + "/v1/" + strings.Replace(name, "playlists/", "playlistViews/", 1)
	videos := []any{"videos/01890a5d-ac96-7f00-8b02-0c0d0e0f1003", "videos/01890a5d-ac96-7f00-8b02-0c0d0e0f1004"}
	for _, video := range videos {
		call(t, http.StatusOK, "POST", api+"/v1/"+name+":addItem", fmt.Sprintf(`{"video": %q}`, video))
	}
	call(t, http.StatusOK, "PATCH", api+"/v1/"+name, `{"title": "Kurosawa"}`)
	call(t, http.StatusBadRequest, "PATCH", api+"/v1/"+name+"?updateMask=version", `{"version": 7, "color": "red"}`)

	want := map[string]any{
		"name": strings.Replace(name, "playlists/", "playlistViews/", 1), "title": "Kurosawa", "videos": videos, "version": "4",
	}
	await(t, func() string {
		_, got := request(t, "GET", view, "")
		return cmp.Diff(want, got)
	})
	call(t, http.StatusOK, "DELETE", api+"/v1/"+name, "")
	await(t, func() string {
		if code, got := request(t, "GET", view, ""); code != http.StatusNotFound {
			return fmt.Sprintf("a view of a deleted playlist: %d %v", code, got)
		}
		return ""
	})
}

// useVideo checks that the first aggregate still works beside the second.
func useVideo(t *testing.T, api string) {
	t.Helper()
	name, _ := call(t, http.StatusOK, "POST", api+"/v1/videos", `{"title": "Ran"}`)["name"].(string)
	call(t, http.StatusOK, "POST", api+"/v1/"+name+":publish", "{}")
	entry := call(t, http.StatusOK, "GET", api+"/v1/"+strings.Replace(name, "videos/", "catalogEntries/", 1)+"?minVersion=2", "")
	if entry["title"] != "Ran" {
		t.Errorf("the entry of the video = %v, want Ran", entry)
	}
}

// startStack starts cmd/dev of the clone until the test ends, and returns the address of
// the API.
func startStack(t *testing.T, dir string) string {
	t.Helper()
	program := filepath.Join(dir, "dev")
	clone.Run(t, dir, "go", "build", "-o", program, "./cmd/dev")
	screen, err := os.Create(filepath.Join(t.TempDir(), "screen"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	cmd := exec.Command(program, "--state", filepath.Join(dir, ".local"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, screen, screen
	settings := regexp.MustCompile(`^(PORT|ROLES|DATABASE_URL|(PUBSUB|OUTBOX|CONSUMER|SERVER|TELEMETRY)_\w+)=`)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), settings.MatchString), "PORT=0", "NO_COLOR=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the test reads the screen
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	address := regexp.MustCompile(`http://localhost:\d+`)
	for {
		text, err := os.ReadFile(screen.Name())
		if err != nil {
			t.Fatal(err)
		}
		if found := address.Find(text); found != nil {
			return string(found)
		}
		select {
		case <-ended:
			t.Fatalf("cmd/dev ended:\n%s", text)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// await calls difference until it returns an empty string.
func await(t *testing.T, difference func() string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		diff := difference()
		if diff == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute (-want +got):\n%s", diff)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// call makes a request that must have a status.
func call(t *testing.T, want int, method, url, body string) map[string]any {
	t.Helper()
	code, got := request(t, method, url, body)
	if code != want {
		t.Fatalf("%s %s: status %d, want %d: %v", method, url, code, want, got)
	}
	return got
}

func request(t *testing.T, method, url, body string) (code int, got map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(text, &got)
	}
	if err != nil {
		t.Fatalf("%s %s: %v: %s", method, url, err, text)
	}
	return response.StatusCode, got
}

// addFiles copies testdata/new into the clone, where each file must be new. It returns
// their number.
func addFiles(t *testing.T, dir string) int {
	t.Helper()
	const from = "testdata/new"
	added := 0
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		added++
		if _, err := io.Copy(file, bytes.NewReader(content)); err != nil {
			_ = file.Close()
			return err
		}
		return file.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	return added
}
