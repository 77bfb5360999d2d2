package server

import (
	"context"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/domain"
)

func (s *videoService) PurgeVideo(ctx context.Context, request *videov1.PurgeVideoRequest) (*videov1.Video, error) {
	return s.change(ctx, "name", request.GetName(), domain.PurgeVideo(aip.ParseEtag(request.GetEtag()), s.stamp(ctx)))
}
