package port

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"example.com/videocatalog/internal/problem"
)

// inbound is a request message together with its decoding error. If a codec
// fails, grpc-go returns INTERNAL before any interceptor runs. With an inbound
// the call continues to the guard, which rejects it and logs it.
type inbound struct {
	message any
	err     error
}

// refusal returns the error for the caller, or nil if the request was decoded.
func (in *inbound) refusal() error {
	if in.err == nil {
		return nil
	}
	return problem.Errorf(problem.Invalid, "the request cannot be decoded: %s", withoutNoise(in.err))
}

// inboundCodec is the protobuf codec, except that it stores the decoding error
// of an inbound.
type inboundCodec struct{ encoding.CodecV2 }

func newInboundCodec() inboundCodec { return inboundCodec{encoding.GetCodecV2(grpcproto.Name)} }

func (c inboundCodec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*inbound)
	if !ok {
		return c.CodecV2.Unmarshal(data, v) //nolint:wrapcheck // the codec's own
	}
	in.err = c.CodecV2.Unmarshal(data, in.message)
	return nil
}

// inboundServices registers services whose methods decode into an inbound. gRPC
// decodes the request of a unary method before it calls the interceptors. If
// that failed, they get the *inbound in place of the request.
type inboundServices struct{ *grpc.Server }

func (s inboundServices) RegisterService(service *grpc.ServiceDesc, implementation any) {
	own := *service
	own.Methods = slices.Clone(service.Methods)
	for i, method := range own.Methods {
		own.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			var in inbound
			receive := func(message any) error {
				in.message = message
				return decode(&in)
			}
			intercept := func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if in.err != nil {
					request = &in
				}
				return interceptor(ctx, request, info, handler)
			}
			return method.Handler(srv, ctx, receive, intercept)
		}
	}
	s.Server.RegisterService(&own, implementation)
}
