package chaos

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
)

// heard is a line of heard.jsonl: a message, when the broker accepted it, and
// whether the subscription received it.
type heard struct {
	Message string    `json:"message"`
	Taken   time.Time `json:"taken"`
	Heard   bool      `json:"heard"`
	Event   uuid.UUID `json:"event,omitzero"`
	Video   uuid.UUID `json:"video,omitzero"`
	Version int64     `json:"version,omitempty"`
}

// dump writes the files that explain a violation: messages in the order of
// arrival, reads of clients, the final copies of watchers, and acks. The caller
// writes the results of clients and the database.
func (h *History) dump(dir string) error {
	lines := make([]heard, 0, len(h.Sightings))
	messages := make(map[string]bool, len(h.Sightings))
	for _, s := range h.Sightings {
		messages[s.MessageID] = true
		lines = append(lines, heard{s.MessageID, h.Publications[s.MessageID], true, s.Event, s.Video, s.Version})
	}
	for id, at := range h.Publications {
		if !messages[id] {
			lines = append(lines, heard{Message: id, Taken: at})
		}
	}
	return errors.Join(
		writeLines(filepath.Join(dir, "heard.jsonl"), lines), writeLines(filepath.Join(dir, "reads.jsonl"), h.Reads),
		writeLines(filepath.Join(dir, "copies.jsonl"), h.Copies), writeLines(filepath.Join(dir, "acks.jsonl"), h.Acks))
}

// writeLines writes one JSON object per line.
func writeLines[T any](path string, lines []T) error {
	file, err := os.Create(path) //nolint:gosec // in the given directory
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	to := bufio.NewWriter(file)
	encoder := json.NewEncoder(to)
	for _, line := range lines {
		if err := encoder.Encode(line); err != nil {
			return errors.Join(fmt.Errorf("write %s: %w", path, err), file.Close())
		}
	}
	if err := errors.Join(to.Flush(), file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
