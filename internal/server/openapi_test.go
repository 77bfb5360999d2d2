package server

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"example.com/videocatalog/internal/transport"
)

// described is a request for an operation of the OpenAPI description.
type described struct {
	operation string
	id        string // of the path, if it has one
	query     string
	body      string
	want      int // the status; if it is 400, the description refuses the request too
}

// ofVideos matches the operations and the paths of videos and their catalog. Other aggregates
// have tests of their own.
var ofVideos = regexp.MustCompile(`^(VideoService_|CatalogService_|/v1/videos\b|/v1/catalogEntries\b)`)

// The server accepts exactly the requests that the description allows, and every
// response has the form that it describes.
func TestServerDoesWhatOpenAPISays(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{})
	doc := loadOpenAPI(t, r)
	_, video := ask(t, r, "POST", "/v1/videos", `{"title": "Ran", "releaseYear": 1985}`)
	name, _ := video["name"].(string)
	id := strings.TrimPrefix(name, "videos/")
	const (
		list, create, get = "VideoService_ListVideos", "VideoService_CreateVideo", "VideoService_GetVideo"
		update            = "VideoService_UpdateVideo"
	)
	asked := make(map[string]bool)
	for _, request := range []described{
		{list, "", "?pageSize=1&orderBy=create_time&showDeleted=true", "", 200},
		{list, "", "?pageSize=-1", "", 400},
		{list, "", "?filter=" + strings.Repeat("x", 1001), "", 400},
		{create, "", "?requestId=0192f3a0-1111-7000-8000-000000000001", `{"title": "` + strings.Repeat("é", 200) + `"}`, 200},
		{create, "", "", `{"title": "Ran", "releaseYear": 0, "languageCode": "", "tags": []}`, 200},
		{create, "", "", `{"title": "Ran", "duration": "9600s", "languageCode": "pt-BR", "tags": ["war"]}`, 200},
		{create, "", "", `{"title": "` + strings.Repeat("x", 201) + `"}`, 400},
		{create, "", "", `{"description": "no title"}`, 400},
		{create, "", "", `{"title": 1}`, 400},
		{create, "", "", `{"title": "Ran", "releaseYear": 2201}`, 400},
		{create, "", "", `{"title": "Ran", "languageCode": "p"}`, 400},
		{create, "", "", `{"title": "Ran", "tags": ["a", "a"]}`, 400},
		{create, "", "", `{"title": "Ran", "tags": [""]}`, 400},
		{"VideoService_BatchCreateVideos", "", "", `{"requests": [{"video": {"title": "Ran"}, "requestId": "0192f3a0-1111-7000-8000-000000000003"}, {"video": {"title": "Ran"}}]}`, 200},
		{"VideoService_BatchCreateVideos", "", "", `{"requests": []}`, 400},
		{"VideoService_BatchCreateVideos", "", "", `{"requests": [{"video": {"title": "Ran", "releaseYear": 2201}}]}`, 400},
		{"VideoService_BatchGetVideos", "", "?names=" + name, "", 200},
		{"VideoService_BatchGetVideos", "", "?names=" + name + "&names=videos/0192f3a0-1111-7000-8000-000000000002", "", 404},
		{"VideoService_BatchGetVideos", "", "?names=ran", "", 400},
		{"VideoService_BatchGetVideos", "", "", "", 400},
		{get, id, "", "", 200},
		{get, "0192f3a0-1111-7000-8000-000000000002", "", "", 404},
		{get, "ran", "", "", 400},
		{update, id, "", `{"description": "A lord divides his land."}`, 200},
		{update, id, "?updateMask=description", `{"description": ""}`, 200},
		{update, id, "", `{"releaseYear": 2201}`, 400},
		{"VideoService_PublishVideo", id, "", `{}`, 200},
		{"VideoService_PublishVideo", id, "", `{"etag": "` + strings.Repeat("x", 65) + `"}`, 400},
		{"CatalogService_GetCatalogEntry", id, "?minVersion=1", "", 200},
		{"CatalogService_GetCatalogEntry", id, "?minVersion=-1", "", 400},
		{"CatalogService_ListCatalogEntries", "", "?pageSize=10", "", 200},
		{"CatalogService_SearchCatalogEntries", "", "?query=ran", "", 200},
		{"CatalogService_SearchCatalogEntries", "", "", "", 400},
		{"VideoService_UnpublishVideo", id, "", `{}`, 200},
		{"VideoService_DeleteVideo", id, "?etag=old", "", 409},
		{"VideoService_DeleteVideo", id, "", "", 200},
		{"VideoService_UndeleteVideo", id, "", `{}`, 200},
		{"VideoService_PurgeVideo", id, "", `{"etag": "` + strings.Repeat("x", 65) + `"}`, 400},
		{"VideoService_DeleteVideo", id, "", "", 200},
		{"VideoService_PurgeVideo", id, "", `{"etag": "old"}`, 409},
		{"VideoService_PurgeVideo", id, "", `{}`, 200},
		{get, id, "", "", 404},
		{list, "", "?showPurged=true", "", 200},
	} {
		asked[request.operation] = true
		request.send(t, r, doc)
	}
	for _, item := range doc.Paths.Map() {
		for _, operation := range item.Operations() {
			id := operation.OperationID
			if ofVideos.MatchString(id) && !asked[id] && id != "CatalogService_WatchCatalogEntries" {
				t.Errorf("%s is described, but not tried", id)
			}
		}
	}
}

// loadOpenAPI reads the description from the server, as clients do.
func loadOpenAPI(t *testing.T, r *running) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromURI(&url.URL{Scheme: "http", Host: r.addr, Path: "/openapi.json"})
	must(t, err)
	must(t, doc.Validate(t.Context()))
	return doc
}

// send sends the request, and compares the response with the description.
func (d described) send(t *testing.T, r *running, doc *openapi3.T) {
	t.Helper()
	route := d.route(t, doc)
	path, params := route.Path, map[string]string{}
	for _, parameter := range route.Operation.Parameters {
		if parameter.Value.In == openapi3.ParameterInPath {
			params[parameter.Value.Name] = d.id
			path = strings.ReplaceAll(path, "{"+parameter.Value.Name+"}", d.id)
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), route.Method, "http://"+r.addr+path+d.query, strings.NewReader(d.body))
	must(t, err)
	request.Header.Set("Content-Type", "application/json")
	input := &openapi3filter.RequestValidationInput{
		Request: request, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}
	if err := openapi3filter.ValidateRequest(t.Context(), input); (err != nil) != (d.want == http.StatusBadRequest) {
		t.Errorf("%+v: the description says %v", d, err)
	}
	response, err := httpClient(t, false).Do(request)
	must(t, err)
	defer response.Body.Close()
	if response.StatusCode != d.want {
		t.Errorf("%+v: status %d", d, response.StatusCode)
	}
	if err := openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: response.StatusCode, Header: response.Header, Body: response.Body,
	}); err != nil {
		t.Errorf("%+v: the response is not as described: %v", d, err)
	}
}

func (d described) route(t *testing.T, doc *openapi3.T) *routers.Route {
	t.Helper()
	for path, item := range doc.Paths.Map() {
		for verb, operation := range item.Operations() {
			if operation.OperationID == d.operation {
				return &routers.Route{Spec: doc, Path: path, PathItem: item, Method: verb, Operation: operation}
			}
		}
	}
	t.Fatalf("%s is not described", d.operation)
	return nil
}
