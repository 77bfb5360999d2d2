package domain

import "example.com/videocatalog/internal/problem"

// The reasons of this package's errors. Clients may depend on them.
const (
	// ReasonVideoDeleted: the video is deleted, and must be undeleted first.
	ReasonVideoDeleted problem.Reason = "VIDEO_DELETED"
	// ReasonVideoNotDeleted: the video cannot be undeleted, because it is not
	// deleted.
	ReasonVideoNotDeleted problem.Reason = "VIDEO_NOT_DELETED"
	// ReasonPurgeNeedsDeletion: the video cannot be purged, because it must be
	// deleted first.
	ReasonPurgeNeedsDeletion problem.Reason = "PURGE_NEEDS_DELETION"
)
