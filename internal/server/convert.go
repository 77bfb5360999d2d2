package server

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/text/language"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
)

// Prefixes of resource names.
const (
	videos         = "videos/"
	catalogEntries = "catalogEntries/"
)

// parseName returns the id in a resource name. The rules in api/proto have
// already checked the form of the name.
func parseName(field, collection, name string) (uuid.UUID, error) {
	id, err := uuid.Parse(strings.TrimPrefix(name, collection))
	if err != nil {
		return uuid.Nil, problem.InvalidField(field, "must be %s{uuid}", collection)
	}
	return id, nil
}

// detailsOf returns the fields of a video that a client may set.
func detailsOf(v *videov1.Video) (domain.Details, error) {
	code := v.GetLanguageCode()
	if code != "" {
		var err error
		if code, err = canonicalLanguage(code); err != nil {
			return domain.Details{}, problem.InvalidField("video.language_code", "%v", err)
		}
	}
	return domain.Details{
		Title:        v.GetTitle(),
		Description:  v.GetDescription(),
		ReleaseYear:  v.GetReleaseYear(),
		Duration:     v.GetDuration().AsDuration(),
		LanguageCode: code,
		Tags:         v.GetTags(),
	}, nil
}

// canonicalLanguage returns a language tag in the canonical form of BCP 47, so
// that the database has one value per language.
func canonicalLanguage(code string) (string, error) {
	tag, err := language.Parse(code)
	if err != nil {
		return "", fmt.Errorf("must be a BCP 47 tag such as en or pt-BR, and %q is none: %w", code, err)
	}
	return tag.String(), nil
}

var stateByName = map[string]domain.State{
	videov1.Video_STATE_DRAFT.String():     domain.Draft,
	videov1.Video_STATE_PUBLISHED.String(): domain.Published,
}

var protoState = map[domain.State]videov1.Video_State{
	domain.Draft:     videov1.Video_STATE_DRAFT,
	domain.Published: videov1.Video_STATE_PUBLISHED,
}

func videoToProto(v domain.Video) *videov1.Video {
	return &videov1.Video{
		Name:         videos + v.ID.String(),
		Title:        v.Title,
		Description:  v.Description,
		ReleaseYear:  v.ReleaseYear,
		Duration:     optionalDuration(v.Duration),
		LanguageCode: v.LanguageCode,
		Tags:         v.Tags,
		State:        protoState[v.State],
		Version:      v.Version,
		CreateTime:   optionalTime(v.CreateTime),
		UpdateTime:   optionalTime(v.UpdateTime),
		PublishTime:  optionalTime(v.PublishTime),
		DeleteTime:   optionalTime(v.DeleteTime),
		Etag:         etag(v.Version),
	}
}

func entryToProto(e domain.Entry) *catalogv1.CatalogEntry {
	return &catalogv1.CatalogEntry{
		Name:         catalogEntries + e.VideoID.String(),
		Video:        videos + e.VideoID.String(),
		Title:        e.Title,
		Description:  e.Description,
		ReleaseYear:  e.ReleaseYear,
		Duration:     optionalDuration(e.Duration),
		LanguageCode: e.LanguageCode,
		Tags:         e.Tags,
		Version:      e.Version,
		PublishTime:  optionalTime(e.PublishTime),
		UpdateTime:   optionalTime(e.UpdateTime),
	}
}

func optionalTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func optionalDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// etag returns the version as a quoted string (AIP-154; RFC 9110, 8.8.3).
func etag(version int64) string { return strconv.Quote(strconv.FormatInt(version, 10)) }

// expectedVersion returns the version in an etag, or domain.AnyVersion for "".
// For an etag that this server never creates, it returns a version that no
// video has.
func expectedVersion(tag string) int64 {
	if tag == "" {
		return domain.AnyVersion
	}
	const never = -1
	version, err := strconv.ParseInt(strings.Trim(tag, `"`), 10, 64)
	if err != nil || version < 1 || etag(version) != tag {
		return never
	}
	return version
}
