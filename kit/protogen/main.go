// Command protogen runs the plugins of buf.gen.yaml on the contract, with the same result as buf generate. It is built
// from libraries that the service has anyway, in seconds, where buf takes minutes.
//
//	protogen -I DIR -o DIR         run the plugins, and write below DIR
//	protogen -I DIR --set FILE     write the compiled contract, for buf breaking
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"example.com/servicekit/tool"
)

func main() {
	imports := flag.String("I", "", "the folder of what the contract imports")
	out := flag.String("o", "", "the folder for what the plugins make")
	set := flag.String("set", "", "the file for the compiled contract")
	flag.Parse()
	tool.Main("protogen", "", func(ctx context.Context, _ []string, _ io.Writer) error { return run(ctx, *imports, *out, *set) })
}

// config is the part of buf.gen.yaml that protogen reads.
type config struct {
	Inputs  []struct{ Directory string }
	Plugins []struct {
		Local []string
		Out   string
		Opt   []string
	}
}

func run(ctx context.Context, imports, out, set string) error {
	text, err := os.ReadFile("buf.gen.yaml")
	if err != nil {
		return err
	}
	var cfg config
	if err := yaml.Unmarshal(text, &cfg); err != nil {
		return fmt.Errorf("buf.gen.yaml: %w", err)
	}
	if len(cfg.Inputs) != 1 {
		return fmt.Errorf("buf.gen.yaml has %d inputs, want 1", len(cfg.Inputs))
	}
	request, err := compile(ctx, cfg.Inputs[0].Directory, imports)
	if err != nil {
		return err
	}
	if set != "" {
		for _, file := range request.GetProtoFile() {
			file.SourceCodeInfo = nil
		}
		content, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: request.GetProtoFile()})
		if err != nil {
			return err
		}
		return os.WriteFile(set, content, 0o644) //nolint:gosec // a source
	}
	for _, plugin := range cfg.Plugins {
		request.Parameter = new(strings.Join(plugin.Opt, ","))
		if err := generate(ctx, plugin.Local, request, filepath.Join(out, plugin.Out)); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(plugin.Local, " "), err)
		}
	}
	return nil
}

// compile returns the request to generate from all files of a folder.
func compile(ctx context.Context, dir, imports string) (*pluginpb.CodeGeneratorRequest, error) {
	request := new(pluginpb.CodeGeneratorRequest)
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutPrefix(path, dir+"/"); ok && filepath.Ext(path) == ".proto" {
			request.FileToGenerate = append(request.FileToGenerate, name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir, imports}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, request.GetFileToGenerate()...)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for _, file := range files {
		add(request, file, seen)
	}
	return request, nil
}

// add adds a file, behind what it imports.
func add(request *pluginpb.CodeGeneratorRequest, file protoreflect.FileDescriptor, seen map[string]bool) {
	if seen[file.Path()] {
		return
	}
	seen[file.Path()] = true
	for i := range file.Imports().Len() {
		add(request, file.Imports().Get(i).FileDescriptor, seen)
	}
	request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(file))
}

// generate runs a plugin, and writes its files.
func generate(ctx context.Context, plugin []string, request *pluginpb.CodeGeneratorRequest, out string) error {
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, plugin[0], plugin[1:]...) //nolint:gosec // of buf.gen.yaml
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return err
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(output, response); err != nil {
		return err
	}
	if response.GetError() != "" {
		return errors.New(response.GetError())
	}
	for _, file := range response.GetFile() {
		path := filepath.Join(out, filepath.FromSlash(file.GetName()))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // a folder of sources
			return err
		}
		if err := os.WriteFile(path, []byte(file.GetContent()), 0o644); err != nil { //nolint:gosec // a source
			return err
		}
	}
	return nil
}
