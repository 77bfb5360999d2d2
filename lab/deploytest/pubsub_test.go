package deploytest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"connectrpc.com/vanguard"
)

// pubSubREST serves the JSON API of Pub/Sub as gcloud calls it, with a gRPC server at addr.
func pubSubREST(addr string) (http.Handler, error) {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	server := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: addr})
	}}
	var services []*vanguard.Service
	for _, name := range []string{
		pubsubpb.Publisher_ServiceDesc.ServiceName, pubsubpb.Subscriber_ServiceDesc.ServiceName, pubsubpb.SchemaService_ServiceDesc.ServiceName,
	} {
		services = append(services, vanguard.NewService(name, server,
			vanguard.WithTargetProtocols(vanguard.ProtocolGRPC), vanguard.WithTargetCodecs(vanguard.CodecProto)))
	}
	transcoder, err := vanguard.NewTranscoder(services)
	if err != nil {
		return nil, fmt.Errorf("make JSON API: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		query.Del("alt") // a parameter of every Google API, not a field
		r.URL.RawQuery = query.Encode()
		r.URL.Path = r.URL.EscapedPath() // the transcoder unescapes it
		r.Header.Del("Accept-Encoding")
		answer := httptest.NewRecorder()
		transcoder.ServeHTTP(answer, r)
		if answer.Code < http.StatusBadRequest {
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes()) // the error is only that gcloud has disconnected
			return
		}
		var status struct{ Message string }
		_ = json.Unmarshal(answer.Body.Bytes(), &status) // without a message the code is enough
		writeError(w, answer.Code, status.Message)
	}), nil
}
