package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	videov1 "example.com/videocatalog/api/proto/video/v1"
)

func overGRPC(ctx context.Context, api videov1.VideoServiceClient, r request) (*videov1.Video, error) {
	switch r.kind {
	case kindCreate:
		return api.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: r.video, RequestId: r.requestID})
	case kindUpdate:
		r.video.Name, r.video.Etag = r.name, r.etag
		return api.UpdateVideo(ctx, &videov1.UpdateVideoRequest{Video: r.video, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"*"}}})
	case kindPublish:
		return api.PublishVideo(ctx, &videov1.PublishVideoRequest{Name: r.name, Etag: r.etag})
	case kindUnpublish:
		return api.UnpublishVideo(ctx, &videov1.UnpublishVideoRequest{Name: r.name, Etag: r.etag})
	case kindDelete:
		return api.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: r.name, Etag: r.etag})
	case kindUndelete:
		return api.UndeleteVideo(ctx, &videov1.UndeleteVideoRequest{Name: r.name, Etag: r.etag})
	case kindPurge:
		return api.PurgeVideo(ctx, &videov1.PurgeVideoRequest{Name: r.name, Etag: r.etag})
	default:
		return nil, fmt.Errorf("unknown kind of command %q", r.kind)
	}
}

// restClient keeps few idle connections, and only for a short time, because the
// processes are restarted often.
var restClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Second}}

func overREST(ctx context.Context, addr string, r request) (*videov1.Video, error) {
	method, path, query := http.MethodPost, "/v1/"+r.name, url.Values{}
	body := []byte("{}")
	var err error
	switch r.kind {
	case kindCreate:
		path = "/v1/videos"
		query.Set("requestId", r.requestID)
		body, err = protojson.Marshal(r.video)
	case kindUpdate:
		method = http.MethodPatch
		r.video.Name, r.video.Etag = r.name, r.etag
		query.Set("updateMask", "title,description,releaseYear,duration,languageCode,tags")
		body, err = protojson.Marshal(r.video)
	case kindDelete:
		method, body = http.MethodDelete, nil
		if r.etag != "" {
			query.Set("etag", r.etag)
		}
	default:
		path += ":" + r.kind
		if r.etag != "" {
			body = fmt.Appendf(nil, `{"etag": %q}`, r.etag)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("marshal: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := restClient.Do(request)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, status.Error(codes.DeadlineExceeded, err.Error())
		}
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	lenient := protojson.UnmarshalOptions{DiscardUnknown: true}
	if response.StatusCode == http.StatusOK {
		v := new(videov1.Video)
		if err := lenient.Unmarshal(answer, v); err != nil {
			return nil, status.Errorf(codes.Unknown, "read answer: %v", err)
		}
		return v, nil
	}
	var failed struct {
		Code    int32 // of builds that do not return errors as AIP-193 says; see Config.Older
		Message string
		Error   struct{ Status, Message string }
	}
	err = json.Unmarshal(answer, &failed)
	if name := failed.Error.Status; name != "" {
		failed.Code, failed.Message = code.Code_value[name], failed.Error.Message
	}
	if err != nil || failed.Code == 0 {
		return nil, status.Errorf(codes.Unknown, "HTTP %d: %s", response.StatusCode, answer)
	}
	return nil, status.ErrorProto(&spb.Status{Code: failed.Code, Message: failed.Message})
}
