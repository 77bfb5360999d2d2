package domain

import "example.com/videocatalog/internal/problem"

// VideoPurged is the last event of a video.
const VideoPurged EventType = "VideoPurged"

// ReasonPurgeNeedsDeletion says that the video cannot be purged, because it must be deleted first.
const ReasonPurgeNeedsDeletion problem.Reason = "PURGE_NEEDS_DELETION"

// Purged reports whether the video is purged. It is deleted then, too, and has no details.
func (v Video) Purged() bool { return !v.PurgeTime.IsZero() }

// PurgeVideo removes the content of a deleted video for good. It leaves a tombstone: the id,
// the version and times. For a video that is not deleted it returns Precondition, so one
// mistaken call cannot destroy a video that is in use. It causes no event if the video is
// purged, whatever version is expected.
func PurgeVideo(expected int64, stamp Stamp) VideoDecision {
	return func(v Video) (*VideoEvent, error) {
		if v.Purged() {
			return nil, nil
		}
		if !v.Deleted() {
			return nil, problem.Errorf(problem.Precondition, "video %q is not deleted: delete it first", v.ID).Because(ReasonPurgeNeedsDeletion)
		}
		if err := v.expect(expected); err != nil {
			return nil, err
		}
		tombstone := Video{ID: v.ID, State: VideoStateDraft, Version: v.Version, CreateTime: v.CreateTime, UpdateTime: v.UpdateTime, DeleteTime: v.DeleteTime}
		event := tombstone.next(VideoPurged, stamp)
		event.Video.PurgeTime, event.Video.UpdateUser = event.Video.UpdateTime, "" // the audit has the caller
		return event, nil
	}
}

// notFound is the error about a purged video.
func (v Video) notFound() error {
	return problem.Errorf(problem.NotFound, "video %q does not exist", v.ID)
}
