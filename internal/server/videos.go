package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/port"
)

// VideoStore stores videos. It is safe for concurrent use.
type VideoStore interface {
	// CreateVideo stores the first event of a video. With a requestID other
	// than uuid.Nil it is idempotent: a repeated call with the same fingerprint
	// returns the current state of the video created first. With another
	// fingerprint it returns problem.Exists.
	CreateVideo(ctx context.Context, requestID uuid.UUID, fingerprint []byte, event *domain.VideoEvent) (domain.Video, error)
	// ChangeVideo applies a decision to a video, while no other caller can
	// change it, and stores the event. It returns the new state.
	ChangeVideo(ctx context.Context, id uuid.UUID, decide domain.VideoDecision) (domain.Video, error)
	// GetVideo returns a video, even a deleted one, or problem.NotFound. A purged
	// one is not found.
	GetVideo(ctx context.Context, id uuid.UUID) (domain.Video, error)
	// ListVideos returns a page of videos, and whether more follow.
	ListVideos(ctx context.Context, query domain.VideoQuery) (videos []domain.Video, more bool, err error)
}

// Videos returns VideoService, the commands.
func Videos(store VideoStore) port.Service {
	return port.Service{
		Desc: &videov1.VideoService_ServiceDesc, Side: SideCommands,
		Handler: &videoService{origin: realOrigin, store: store},
		Gateway: func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
			return videov1.RegisterVideoServiceHandlerClient(context.Background(), mux, videov1.NewVideoServiceClient(conn))
		},
	}
}

// videoService implements the commands. It adds the time and the new ids;
// package domain decides, and the store does the rest.
type videoService struct {
	videov1.UnimplementedVideoServiceServer
	origin
	store VideoStore
}

func (s *videoService) CreateVideo(ctx context.Context, request *videov1.CreateVideoRequest) (*videov1.Video, error) {
	id, err := s.newID()
	if err != nil {
		return nil, fmt.Errorf("make id: %w", err)
	}
	stamp, err := s.stamp(ctx)
	if err != nil {
		return nil, err
	}
	requestID, err := parseRequestID(request.GetRequestId())
	if err != nil {
		return nil, err
	}
	fingerprint, err := fingerprintOf(request.GetVideo())
	if err != nil {
		return nil, err
	}
	details, err := detailsOf(request.GetVideo())
	if err != nil {
		return nil, err
	}
	event, err := domain.CreateVideo(id, details, stamp)
	if err != nil {
		return nil, err
	}
	return toVideo(s.store.CreateVideo(ctx, requestID, fingerprint, event))
}

func (s *videoService) GetVideo(ctx context.Context, request *videov1.GetVideoRequest) (*videov1.Video, error) {
	id, err := aip.ParseName("name", videos, request.GetName())
	if err != nil {
		return nil, err
	}
	return toVideo(s.store.GetVideo(ctx, id))
}

func (s *videoService) ListVideos(ctx context.Context, request *videov1.ListVideosRequest) (*videov1.ListVideosResponse, error) {
	p, err := aip.NewPager[domain.VideoCursor](request)
	if err != nil {
		return nil, err
	}
	query := domain.VideoQuery{After: p.After, Limit: p.Size, ShowDeleted: request.GetShowDeleted(), ShowPurged: request.GetShowPurged()}
	if err := filterVideos(request.GetFilter(), &query); err != nil {
		return nil, err
	}
	if err := orderVideos(request.GetOrderBy(), &query); err != nil {
		return nil, err
	}
	found, more, err := s.store.ListVideos(ctx, query)
	if err != nil {
		return nil, err
	}
	page, next, err := aip.PageOf(p, found, more, videoToProto, func(v domain.Video) domain.VideoCursor {
		return domain.VideoCursor{CreateTime: v.CreateTime, ID: v.ID}
	})
	return &videov1.ListVideosResponse{Videos: page, NextPageToken: next}, err
}

func (s *videoService) UpdateVideo(ctx context.Context, request *videov1.UpdateVideoRequest) (*videov1.Video, error) {
	video := request.GetVideo()
	fields, err := aip.Fields(request.GetUpdateMask(), video, domain.AllVideoFields())
	if err != nil {
		return nil, err
	}
	if !slices.Contains(fields, domain.VideoFieldLanguageCode) {
		video.LanguageCode = "" // it is not changed, so its value does not matter
	}
	details, err := detailsOf(video)
	if err != nil {
		return nil, err
	}
	return s.change(ctx, "video.name", video.GetName(), func(stamp domain.Stamp) domain.VideoDecision {
		return domain.UpdateVideo(fields, details, aip.ParseEtag(video.GetEtag()), stamp)
	})
}

func (s *videoService) PublishVideo(ctx context.Context, request *videov1.PublishVideoRequest) (*videov1.Video, error) {
	return s.change(ctx, "name", request.GetName(), func(stamp domain.Stamp) domain.VideoDecision {
		return domain.PublishVideo(aip.ParseEtag(request.GetEtag()), stamp)
	})
}

func (s *videoService) UnpublishVideo(ctx context.Context, request *videov1.UnpublishVideoRequest) (*videov1.Video, error) {
	return s.change(ctx, "name", request.GetName(), func(stamp domain.Stamp) domain.VideoDecision {
		return domain.UnpublishVideo(aip.ParseEtag(request.GetEtag()), stamp)
	})
}

func (s *videoService) DeleteVideo(ctx context.Context, request *videov1.DeleteVideoRequest) (*videov1.Video, error) {
	return s.change(ctx, "name", request.GetName(), func(stamp domain.Stamp) domain.VideoDecision {
		return domain.DeleteVideo(request.GetAllowMissing(), aip.ParseEtag(request.GetEtag()), stamp)
	})
}

func (s *videoService) UndeleteVideo(ctx context.Context, request *videov1.UndeleteVideoRequest) (*videov1.Video, error) {
	return s.change(ctx, "name", request.GetName(), func(stamp domain.Stamp) domain.VideoDecision {
		return domain.UndeleteVideo(aip.ParseEtag(request.GetEtag()), stamp)
	})
}

func (s *videoService) PurgeVideo(ctx context.Context, request *videov1.PurgeVideoRequest) (*videov1.Video, error) {
	return s.change(ctx, "name", request.GetName(), func(stamp domain.Stamp) domain.VideoDecision {
		return domain.PurgeVideo(aip.ParseEtag(request.GetEtag()), stamp)
	})
}

// change runs a command on an existing video.
func (s *videoService) change(ctx context.Context, field, name string, decision func(domain.Stamp) domain.VideoDecision) (*videov1.Video, error) {
	id, err := aip.ParseName(field, videos, name)
	if err != nil {
		return nil, err
	}
	stamp, err := s.stamp(ctx)
	if err != nil {
		return nil, err
	}
	return toVideo(s.store.ChangeVideo(ctx, id, decision(stamp)))
}

// toVideo returns the result of a store as a message.
func toVideo(v domain.Video, err error) (*videov1.Video, error) {
	if err != nil {
		return nil, err
	}
	return videoToProto(v), nil
}

// fingerprintOf returns a hash of what a create request sets. It leaves out the fields that
// the server ignores.
func fingerprintOf(v *videov1.Video) ([]byte, error) {
	return hash(&videov1.Video{
		Title: v.GetTitle(), Description: v.GetDescription(), ReleaseYear: v.GetReleaseYear(),
		Duration: v.GetDuration(), LanguageCode: v.GetLanguageCode(), Tags: v.GetTags(),
	})
}
