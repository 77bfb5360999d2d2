package main

import (
	"regexp"
	"strings"
)

// A lean service has the machinery, and one entity of its own instead of the example:
// cmd/entity makes the entity. It has no files of the example, and no tests that need the
// example. The template proves the machinery for all of its services.

// exampleFiles are the files of the template that are about videos and the catalog, or that only
// such files use. A star stands for any part of a name.
var exampleFiles = []string{
	"api/proto/catalog", "api/proto/video",
	"cmd/server/bench_test.go", "cmd/server/videos.go",
	"db/migrations/00004_videos.sql", "db/migrations/00005_projection.sql", "db/migrations/00009_erasures.sql",
	"db/migrations/00011_audited_purges.sql", "db/migrations/00012_video_users.sql",
	"db/queries/erasures.sql", "db/queries/projection.sql", "db/queries/requests.sql", "db/queries/video*.sql",
	"deploy/smoke/video.go",
	"docs/catalog.md", "docs/erasure.md", "docs/performance.md",
	"internal/domain/catalog.go", "internal/domain/purge.go", "internal/domain/query.go", "internal/domain/video.go",
	"internal/event/testdata", "internal/event/video.go",
	"internal/names/video.go", "internal/transport/draining.go",
	"internal/pg/pgtest/lab.go", "internal/search",
	"internal/server/await.go", "internal/server/batch.go", "internal/server/catalog.go", "internal/server/filter.go",
	"internal/server/purge.go", "internal/server/videos.go", "internal/server/watch.go",
	"internal/store/batch.go", "internal/store/catalog*.go", "internal/store/changes.go", "internal/store/erase.go", "internal/store/videos.go", "internal/store/videos_list.go",
	"internal/store/internal/sqlcgen/erasures.sql.go", "internal/store/internal/sqlcgen/projection.sql.go", "internal/store/internal/sqlcgen/requests.sql.go",
	"internal/store/internal/sqlcgen/video*.go",
	"options/*/videos.go", "options/*/queries/videos.sql", "options/*/internal/sqlcgen/videos.sql.go",
}

// provedHere are the tests of machinery that services do not change. The tests of the outbox, the receiver
// and the store run in a service, too. lab/prove runs the tests of lab/engine there.
var provedHere = []string{
	"internal/aip/*_test.go", "internal/app/live_test.go", "internal/app/maintain_test.go", "internal/app/option_test.go", "internal/auth/*_test.go", "internal/envelope/*_test.go",
	"internal/consumer/ack_test.go", "internal/consumer/batch_test.go", "internal/consumer/effect_test.go", "internal/consumer/handlers_test.go",
	"internal/consumer/observe_test.go", "internal/consumer/sources_test.go", "internal/consumer/stop_test.go",
	"internal/operate/*_test.go", "internal/pg/*_test.go", "internal/transport/*_test.go", "internal/telemetry/*_test.go", "internal/telemetry/heartbeat/*_test.go",
	"options/repair/entities_test.go", "options/wal/contract_test.go",
}

// isOfExample reports whether a lean service leaves out a file: a file of the example, a test of provedHere,
// or a test that needs the example, because it has a word of it. The content must be without marks.
func isOfExample(name, content string) bool {
	return isBelow(name, exampleFiles) || isBelow(name, provedHere) || strings.HasSuffix(name, "_test.go") && exampleWords.MatchString(ofService.ReplaceAllString(content, ""))
}

// lists has the line of the example in each list of a program, by the file of the list.
var lists = map[string]string{
	"cmd/server/registrations.go":   "\t\tvideos(),\n",
	"options/repair/projections.go": "\t\tnewVideos(commands, queries),\n",
	"options/replay/aggregates.go":  "\t\tvideos(),\n",
}

var (
	exampleWords = regexp.MustCompile(`(?i)video|catalog|film`)
	// ofService matches the names of the template, which have words of the example, too.
	ofService = regexp.MustCompile(given + `|` + untouched)
)

// addEntity makes the entity of a lean service.
func (r *renderer) addEntity() error {
	a := r.options
	args := []string{"run", "./cmd/entity", "add", a.Entity, "--plural", a.Plural, "--fields", a.Fields}
	if a.Refs != "" {
		args = append(args, "--refs", a.Refs)
	}
	if a.Transitions != "" {
		args = append(args, "--transitions", a.Transitions)
	}
	if a.Timers != "" {
		args = append(args, "--timers", a.Timers)
	}
	if a.Audited {
		args = append(args, "--audited")
	}
	if a.Batch {
		args = append(args, "--batch")
	}
	r.generated = true
	return command(r.ctx, r.dir, "go", args...)
}
