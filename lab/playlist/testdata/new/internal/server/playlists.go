package server

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"

	playlistv1 "example.com/videocatalog/api/proto/playlist/v1"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/port"
)

const (
	playlists     = "playlists/"
	playlistViews = "playlistViews/"
)

// PlaylistStore stores playlists.
type PlaylistStore interface {
	CreatePlaylist(ctx context.Context, created *domain.PlaylistEvent) (domain.Playlist, error)
	ChangePlaylist(ctx context.Context, id uuid.UUID, decide domain.PlaylistDecision) (domain.Playlist, error)
	GetPlaylist(ctx context.Context, id uuid.UUID) (domain.Playlist, error)
}

// PlaylistViewStore reads what the events of playlists made.
type PlaylistViewStore interface {
	GetPlaylist(ctx context.Context, id uuid.UUID) (domain.Playlist, error)
}

// Playlists returns PlaylistService, the commands of playlists.
func Playlists(store PlaylistStore) port.Service {
	return port.Service{
		Desc: &playlistv1.PlaylistService_ServiceDesc, Side: SideCommands, Handler: &playlistService{store: store},
		Gateway: func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
			return playlistv1.RegisterPlaylistServiceHandlerClient(context.Background(), mux, playlistv1.NewPlaylistServiceClient(conn))
		},
	}
}

// PlaylistViews returns PlaylistViewService, their queries.
func PlaylistViews(store PlaylistViewStore) port.Service {
	return port.Service{
		Desc: &playlistv1.PlaylistViewService_ServiceDesc, Side: SideQueries, Handler: &playlistViewService{store: store},
		Gateway: func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
			return playlistv1.RegisterPlaylistViewServiceHandlerClient(context.Background(), mux, playlistv1.NewPlaylistViewServiceClient(conn))
		},
	}
}

type playlistService struct {
	playlistv1.UnimplementedPlaylistServiceServer
	store PlaylistStore
}

type playlistViewService struct {
	playlistv1.UnimplementedPlaylistViewServiceServer
	store PlaylistViewStore
}

func (s *playlistService) CreatePlaylist(ctx context.Context, request *playlistv1.CreatePlaylistRequest) (*playlistv1.Playlist, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	stamp, err := stampNow()
	if err != nil {
		return nil, err
	}
	return playlistToProto(s.store.CreatePlaylist(ctx, domain.CreatePlaylist(id, request.GetPlaylist().GetTitle(), stamp)))
}

func (s *playlistService) GetPlaylist(ctx context.Context, request *playlistv1.GetPlaylistRequest) (*playlistv1.Playlist, error) {
	id, err := aip.ParseName("name", playlists, request.GetName())
	if err != nil {
		return nil, err
	}
	return playlistToProto(s.store.GetPlaylist(ctx, id))
}

func (s *playlistService) UpdatePlaylist(ctx context.Context, request *playlistv1.UpdatePlaylistRequest) (*playlistv1.Playlist, error) {
	playlist := request.GetPlaylist()
	fields, err := aip.Fields(request.GetUpdateMask(), playlist, []domain.Field{domain.FieldTitle})
	if err != nil {
		return nil, err
	}
	if len(fields) == 0 {
		return s.GetPlaylist(ctx, &playlistv1.GetPlaylistRequest{Name: playlist.GetName()})
	}
	return s.change(ctx, "playlist.name", playlist.GetName(), func(stamp domain.Stamp) domain.PlaylistDecision {
		return domain.RenamePlaylist(playlist.GetTitle(), aip.ParseEtag(playlist.GetEtag()), stamp)
	})
}

func (s *playlistService) AddPlaylistItem(ctx context.Context, request *playlistv1.AddPlaylistItemRequest) (*playlistv1.Playlist, error) {
	video, err := aip.ParseName("video", videos, request.GetVideo())
	if err != nil {
		return nil, err
	}
	return s.change(ctx, "name", request.GetName(), func(stamp domain.Stamp) domain.PlaylistDecision {
		return domain.AddPlaylistItem(video, aip.ParseEtag(request.GetEtag()), stamp)
	})
}

func (s *playlistService) DeletePlaylist(ctx context.Context, request *playlistv1.DeletePlaylistRequest) (*playlistv1.Playlist, error) {
	return s.change(ctx, "name", request.GetName(), func(stamp domain.Stamp) domain.PlaylistDecision {
		return domain.DeletePlaylist(aip.ParseEtag(request.GetEtag()), stamp)
	})
}

func (s *playlistService) change(ctx context.Context, field, name string, decision func(domain.Stamp) domain.PlaylistDecision) (*playlistv1.Playlist, error) {
	id, err := aip.ParseName(field, playlists, name)
	if err != nil {
		return nil, err
	}
	stamp, err := stampNow()
	if err != nil {
		return nil, err
	}
	return playlistToProto(s.store.ChangePlaylist(ctx, id, decision(stamp)))
}

func (s *playlistViewService) GetPlaylistView(ctx context.Context, request *playlistv1.GetPlaylistViewRequest) (*playlistv1.PlaylistView, error) {
	id, err := aip.ParseName("name", playlistViews, request.GetName())
	if err != nil {
		return nil, err
	}
	p, err := s.store.GetPlaylist(ctx, id)
	if err != nil {
		return nil, err
	}
	return &playlistv1.PlaylistView{Name: playlistViews + p.ID.String(), Title: p.Title, Videos: videoNames(p), Version: p.Version}, nil
}

func stampNow() (domain.Stamp, error) {
	id, err := uuid.NewV7()
	return domain.Stamp{EventID: id, Time: time.Now().UTC()}, err
}

func playlistToProto(p domain.Playlist, err error) (*playlistv1.Playlist, error) {
	if err != nil {
		return nil, err
	}
	return &playlistv1.Playlist{
		Name: playlists + p.ID.String(), Title: p.Title, Videos: videoNames(p), Version: p.Version, Etag: aip.Etag(p.Version),
		CreateTime: aip.Timestamp(p.CreateTime), UpdateTime: aip.Timestamp(p.UpdateTime), DeleteTime: aip.Timestamp(p.DeleteTime),
	}, nil
}

func videoNames(p domain.Playlist) []string {
	names := make([]string, len(p.VideoIDs))
	for i, id := range p.VideoIDs {
		names[i] = videos + id.String()
	}
	return names
}
