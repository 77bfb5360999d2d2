package app

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A URL is shown without its secrets, wherever they are.
func TestConsoleHidesSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"": "",
		"postgres://app:secret@db.internal:5432/service?sslmode=verify-full&password=secret": "postgres://app@db.internal:5432/service",
		"postgres://db.internal/service":   "postgres://db.internal/service",
		"host=db.internal password=secret": "set",
		"https://console.example.com/":     "https://console.example.com/",
	} {
		if got := withoutSecrets(in); got != want {
			t.Errorf("withoutSecrets(%q) = %q, want %q", in, got, want)
		}
	}
	cfg := config{DatabaseURL: "postgres://app:secret@db/service", ReadDatabaseURL: "postgres://app:secret@db/service"}
	var names []string
	for _, setting := range settingsInForce(cfg) {
		names = append(names, setting.Name)
		if strings.Contains(setting.Value, "secret") {
			t.Errorf("%s = %q", setting.Name, setting.Value)
		}
	}
	var want []string
	for _, row := range empty.settings() {
		want = append(want, row.Name)
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}
