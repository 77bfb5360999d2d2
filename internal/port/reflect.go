package port

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha" // older clients still use it
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// registerReflection adds gRPC reflection. It does not describe services that this
// server does not have: the process may serve those on another port.
func registerReflection(server *grpc.Server) {
	options := reflection.ServerOptions{Services: server, DescriptorResolver: servedFiles{server}}
	reflectionpb.RegisterServerReflectionServer(server, reflection.NewServerV1(options))
	reflectionalphapb.RegisterServerReflectionServer(server, reflection.NewServer(options))
}

// servedFiles finds the proto files of the process, except those with a service that
// the server does not have.
type servedFiles struct{ server *grpc.Server }

func (s servedFiles) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	file, err := protoregistry.GlobalFiles.FindFileByPath(path)
	if err != nil || !s.has(file) {
		return nil, fmt.Errorf("find file %s: %w", path, protoregistry.NotFound)
	}
	return file, nil
}

func (s servedFiles) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil || !s.has(found.ParentFile()) {
		return nil, fmt.Errorf("find %s: %w", name, protoregistry.NotFound)
	}
	return found, nil
}

// has reports whether the server has all services of a file.
func (s servedFiles) has(file protoreflect.FileDescriptor) bool {
	served := s.server.GetServiceInfo()
	for i := range file.Services().Len() {
		if _, ok := served[string(file.Services().Get(i).FullName())]; !ok {
			return false
		}
	}
	return true
}
