// Package server has the handlers of the API: [VideoService], the commands, and
// [CatalogService], the queries. Package port serves them.
//
// A handler converts a request, adds the time and new ids, calls package domain
// and a store, and converts the result. It makes no decisions, and no layer
// stands between it and the store. [VideoStore], [CatalogStore] and [Changes] are
// the interfaces that it needs.
package server

import (
	"context"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/port"
)

// The sides of the process that the services need.
const (
	SideVideo   = "video"   // the commands
	SideCatalog = "catalog" // the queries
)

// Videos registers VideoService with a port. If the handler is nil, its methods
// are UNIMPLEMENTED.
func Videos(handler *VideoService) port.Service {
	s := port.Service{
		Desc: &videov1.VideoService_ServiceDesc, Side: SideVideo,
		Gateway: func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
			return videov1.RegisterVideoServiceHandlerClient(context.Background(), mux, videov1.NewVideoServiceClient(conn))
		},
	}
	if handler != nil {
		s.Handler = handler
	}
	return s
}

// Catalog registers CatalogService with a port, as Videos does.
func Catalog(handler *CatalogService) port.Service {
	s := port.Service{
		Desc: &catalogv1.CatalogService_ServiceDesc, Side: SideCatalog,
		Gateway: func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
			return catalogv1.RegisterCatalogServiceHandlerClient(context.Background(), mux, catalogv1.NewCatalogServiceClient(conn))
		},
	}
	if handler != nil {
		s.Handler, s.Wait = handler, handler.Wait
	}
	return s
}
