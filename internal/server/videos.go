package server

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/transport"
)

// videoCollection is the prefix of resource names.
const videoCollection = "videos/"

// VideoStore stores videos: see store.Videos. It is safe for concurrent use.
type VideoStore interface {
	CreateVideo(ctx context.Context, requestID uuid.UUID, fingerprint []byte, event *domain.VideoEvent) (domain.Video, error)
	CreateVideos(ctx context.Context, requestIDs []uuid.UUID, fingerprints [][]byte, events []*domain.VideoEvent) (all []domain.Video, item int, err error)
	GetVideos(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]domain.Video, error)
	ChangeVideo(ctx context.Context, id uuid.UUID, decide domain.VideoDecision) (domain.Video, error)
	GetVideo(ctx context.Context, id uuid.UUID) (domain.Video, error)
	ListVideos(ctx context.Context, query domain.VideoQuery) (page []domain.Video, more bool, err error)
}

// Videos returns VideoService, the commands of videos.
func Videos(store VideoStore) transport.Service {
	return transport.Service{
		Desc: &videov1.VideoService_ServiceDesc, Side: transport.SideCommands,
		Handler: &videoService{origin: realOrigin, store: store},
		Gateway: videov1.RegisterVideoServiceHandler,
	}
}

// videoService implements the commands. It adds the time and the new ids; package domain
// decides, and the store does the rest.
type videoService struct {
	videov1.UnimplementedVideoServiceServer
	origin
	store VideoStore
}

func (s *videoService) CreateVideo(ctx context.Context, request *videov1.CreateVideoRequest) (*videov1.Video, error) {
	requestID, err := parseRequestID(request.GetRequestId())
	if err != nil {
		return nil, err
	}
	if err := canonicalize(request.GetVideo()); err != nil {
		return nil, err
	}
	details := videoDetailsOf(request.GetVideo())
	fingerprint, err := hash(videoToProto(domain.Video{VideoDetails: details}))
	if err != nil {
		return nil, err
	}
	event, err := domain.CreateVideo(s.newID(), details, s.stamp(ctx))
	if err != nil {
		return nil, err
	}
	return toVideo(s.store.CreateVideo(ctx, requestID, fingerprint, event))
}

// BatchCreateVideos lets CreateVideo make the event of each item, so that both have the same rules.
func (s *videoService) BatchCreateVideos(ctx context.Context, request *videov1.BatchCreateVideosRequest) (*videov1.BatchCreateVideosResponse, error) {
	batch := new(videoBatch)
	each := &videoService{origin: s.origin, store: batch}
	for i, item := range request.GetRequests() {
		if _, err := each.CreateVideo(ctx, item); err != nil {
			return nil, inItem("requests", i, err)
		}
	}
	if err := distinct("requests[%d].request_id", batch.requestIDs); err != nil {
		return nil, err
	}
	all, item, err := s.store.CreateVideos(ctx, batch.requestIDs, batch.fingerprints, batch.events)
	if err != nil {
		return nil, inItem("requests", item, err)
	}
	return &videov1.BatchCreateVideosResponse{Videos: aip.Each(all, videoToProto)}, nil
}

// videoBatch collects what CreateVideo would store.
type videoBatch struct {
	VideoStore
	requestIDs   []uuid.UUID
	fingerprints [][]byte
	events       []*domain.VideoEvent
}

func (b *videoBatch) CreateVideo(_ context.Context, requestID uuid.UUID, fingerprint []byte, event *domain.VideoEvent) (domain.Video, error) {
	b.requestIDs, b.fingerprints, b.events = append(b.requestIDs, requestID), append(b.fingerprints, fingerprint), append(b.events, event)
	return event.Video, nil
}

func (s *videoService) BatchGetVideos(ctx context.Context, request *videov1.BatchGetVideosRequest) (*videov1.BatchGetVideosResponse, error) {
	ids, err := idsOf(videoCollection, request.GetNames())
	if err != nil {
		return nil, err
	}
	found, err := s.store.GetVideos(ctx, ids)
	if err != nil {
		return nil, err
	}
	all, err := inOrder("video", ids, found, videoToProto)
	return &videov1.BatchGetVideosResponse{Videos: all}, err
}

func (s *videoService) GetVideo(ctx context.Context, request *videov1.GetVideoRequest) (*videov1.Video, error) {
	id, err := aip.ParseName("name", videoCollection, request.GetName())
	if err != nil {
		return nil, err
	}
	return toVideo(s.store.GetVideo(ctx, id))
}

func (s *videoService) ListVideos(ctx context.Context, request *videov1.ListVideosRequest) (*videov1.ListVideosResponse, error) {
	query := domain.VideoQuery{ShowDeleted: request.GetShowDeleted(), ShowPurged: request.GetShowPurged()}
	if err := filterVideos(request.GetFilter(), &query); err != nil {
		return nil, err
	}
	if err := orderVideos(request.GetOrderBy(), &query); err != nil {
		return nil, err
	}
	page, next, err := aip.List(request, videoToProto, videoCursorOf, func(after *domain.VideoCursor, limit int) ([]domain.Video, bool, error) {
		query.After, query.Limit = after, limit
		return s.store.ListVideos(ctx, query)
	})
	return &videov1.ListVideosResponse{Videos: page, NextPageToken: next}, err
}

func (s *videoService) UpdateVideo(ctx context.Context, request *videov1.UpdateVideoRequest) (*videov1.Video, error) {
	asked := request.GetVideo()
	if err := aip.CheckMask(request.GetUpdateMask(), asked); err != nil {
		return nil, err
	}
	set := aip.Merged(request.GetUpdateMask(), new(videov1.Video), asked)
	if err := canonicalize(set); err != nil {
		return nil, err
	}
	change := func(d *domain.VideoDetails) {
		current := videoToProto(domain.Video{VideoDetails: *d})
		*d = videoDetailsOf(aip.Merged(request.GetUpdateMask(), current, set))
	}
	return s.change(ctx, "video.name", asked.GetName(), domain.UpdateVideo(change, aip.ParseEtag(asked.GetEtag()), s.stamp(ctx)))
}

func (s *videoService) PublishVideo(ctx context.Context, request *videov1.PublishVideoRequest) (*videov1.Video, error) {
	return s.change(ctx, "name", request.GetName(), domain.PublishVideo(aip.ParseEtag(request.GetEtag()), s.stamp(ctx)))
}

func (s *videoService) UnpublishVideo(ctx context.Context, request *videov1.UnpublishVideoRequest) (*videov1.Video, error) {
	return s.change(ctx, "name", request.GetName(), domain.UnpublishVideo(aip.ParseEtag(request.GetEtag()), s.stamp(ctx)))
}

func (s *videoService) DeleteVideo(ctx context.Context, request *videov1.DeleteVideoRequest) (*videov1.Video, error) {
	decide := domain.DeleteVideo(request.GetAllowMissing(), aip.ParseEtag(request.GetEtag()), s.stamp(ctx))
	return s.change(ctx, "name", request.GetName(), decide)
}

func (s *videoService) UndeleteVideo(ctx context.Context, request *videov1.UndeleteVideoRequest) (*videov1.Video, error) {
	return s.change(ctx, "name", request.GetName(), domain.UndeleteVideo(aip.ParseEtag(request.GetEtag()), s.stamp(ctx)))
}

// change runs a command on an existing video.
func (s *videoService) change(ctx context.Context, field, name string, decide domain.VideoDecision) (*videov1.Video, error) {
	id, err := aip.ParseName(field, videoCollection, name)
	if err != nil {
		return nil, err
	}
	return toVideo(s.store.ChangeVideo(ctx, id, decide))
}

func videoCursorOf(v domain.Video) domain.VideoCursor {
	return domain.VideoCursor{CreateTime: v.CreateTime, ID: v.ID}
}

// toVideo returns the result of a store as a message.
func toVideo(v domain.Video, err error) (*videov1.Video, error) {
	if err != nil {
		return nil, err
	}
	return videoToProto(v), nil
}

func videoToProto(v domain.Video) *videov1.Video {
	return &videov1.Video{
		Name:         videoCollection + v.ID.String(),
		Title:        v.Title,
		Description:  v.Description,
		ReleaseYear:  v.ReleaseYear,
		Duration:     aip.IfSet(v.Duration, durationpb.New),
		LanguageCode: v.LanguageCode,
		Tags:         v.Tags,
		State:        videoStates[v.State],
		Version:      v.Version, Etag: aip.Etag(v.Version),
		CreateTime: aip.Timestamp(v.CreateTime), UpdateTime: aip.Timestamp(v.UpdateTime),
		DeleteTime: aip.Timestamp(v.DeleteTime), PublishTime: aip.Timestamp(v.PublishTime), PurgeTime: aip.Timestamp(v.PurgeTime),
		CreateUser: v.CreateUser, UpdateUser: v.UpdateUser,
	}
}

// videoDetailsOf returns the fields that a client may set.
func videoDetailsOf(v *videov1.Video) domain.VideoDetails {
	return domain.VideoDetails{
		Title:        v.GetTitle(),
		Description:  v.GetDescription(),
		ReleaseYear:  v.GetReleaseYear(),
		Duration:     v.GetDuration().AsDuration(),
		LanguageCode: v.GetLanguageCode(),
		Tags:         v.GetTags(),
	}
}

var videoStates = map[domain.VideoState]videov1.Video_State{
	domain.VideoStateDraft:     videov1.Video_STATE_DRAFT,
	domain.VideoStatePublished: videov1.Video_STATE_PUBLISHED,
}

// videoStateOf returns the state with a name of the API.
func videoStateOf(name string) (domain.VideoState, error) {
	for state, value := range videoStates {
		if value.String() == name {
			return state, nil
		}
	}
	return "", aip.ErrUnsupported
}
