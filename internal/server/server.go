// Package server has the handlers of the API: [Videos], the commands, and [Catalog],
// the queries. Package port serves them.
//
// A handler converts a request, adds the time and new ids, calls package domain
// and a store, and converts the result. It makes no decisions, and no layer
// stands between it and the store. [VideoStore], [CatalogStore] and [Changes] are
// the interfaces that it needs.
package server

import (
	"context"
	"crypto/cipher"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/port"
)

// The sides of the process that the services need.
const (
	SideCommands = "commands"
	SideQueries  = "queries"
)

// Videos returns VideoService, the commands. seal encrypts page tokens.
func Videos(store VideoStore, seal cipher.AEAD) port.Service {
	return port.Service{
		Desc: &videov1.VideoService_ServiceDesc, Side: SideCommands,
		Handler: &videoService{origin: realOrigin, store: store, seal: seal},
		Gateway: func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
			return videov1.RegisterVideoServiceHandlerClient(context.Background(), mux, videov1.NewVideoServiceClient(conn))
		},
	}
}

// Catalog returns CatalogService, the queries. seal encrypts page tokens and resume
// tokens; metrics may be nil.
func Catalog(cfg CatalogConfig, store CatalogStore, changes Changes, seal cipher.AEAD, metrics metric.MeterProvider) (port.Service, error) {
	handler, err := newCatalogService(cfg, store, changes, seal, metrics)
	if err != nil {
		return port.Service{}, err
	}
	return catalogOf(handler), nil
}

func catalogOf(handler *catalogService) port.Service {
	return port.Service{
		Desc: &catalogv1.CatalogService_ServiceDesc, Side: SideQueries,
		Handler: handler, Wait: handler.waits.running.Wait,
		Gateway: func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
			return catalogv1.RegisterCatalogServiceHandlerClient(context.Background(), mux, catalogv1.NewCatalogServiceClient(conn))
		},
	}
}
