package server

import (
	"fmt"

	"golang.org/x/text/language"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
)

// Prefixes of resource names.
const (
	videos         = "videos/"
	catalogEntries = "catalogEntries/"
)

// detailsOf returns the fields of a video that a client may set.
func detailsOf(v *videov1.Video) (domain.VideoDetails, error) {
	code := v.GetLanguageCode()
	if code != "" {
		var err error
		if code, err = canonicalLanguage(code); err != nil {
			return domain.VideoDetails{}, problem.InvalidField("video.language_code", "%v", err)
		}
	}
	return domain.VideoDetails{
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

var stateByName = map[string]domain.VideoState{
	videov1.Video_STATE_DRAFT.String():     domain.VideoStateDraft,
	videov1.Video_STATE_PUBLISHED.String(): domain.VideoStatePublished,
}

var protoState = map[domain.VideoState]videov1.Video_State{
	domain.VideoStateDraft:     videov1.Video_STATE_DRAFT,
	domain.VideoStatePublished: videov1.Video_STATE_PUBLISHED,
}

func videoToProto(v domain.Video) *videov1.Video {
	return &videov1.Video{
		Name:         videos + v.ID.String(),
		Title:        v.Title,
		Description:  v.Description,
		ReleaseYear:  v.ReleaseYear,
		Duration:     aip.Duration(v.Duration),
		LanguageCode: v.LanguageCode,
		Tags:         v.Tags,
		State:        protoState[v.State],
		Version:      v.Version,
		CreateTime:   aip.Timestamp(v.CreateTime),
		UpdateTime:   aip.Timestamp(v.UpdateTime),
		PublishTime:  aip.Timestamp(v.PublishTime),
		DeleteTime:   aip.Timestamp(v.DeleteTime),
		PurgeTime:    aip.Timestamp(v.PurgeTime),
		Etag:         aip.Etag(v.Version),
	}
}

func entryToProto(e domain.Entry) *catalogv1.CatalogEntry {
	return &catalogv1.CatalogEntry{
		Name:         catalogEntries + e.VideoID.String(),
		Video:        videos + e.VideoID.String(),
		Title:        e.Title,
		Description:  e.Description,
		ReleaseYear:  e.ReleaseYear,
		Duration:     aip.Duration(e.Duration),
		LanguageCode: e.LanguageCode,
		Tags:         e.Tags,
		Version:      e.Version,
		PublishTime:  aip.Timestamp(e.PublishTime),
		UpdateTime:   aip.Timestamp(e.UpdateTime),
	}
}
