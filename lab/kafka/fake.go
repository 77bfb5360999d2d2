package kafka

import (
	"context"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"

	"example.com/videocatalog/lab/internal/child"
)

// Role is the name of Fake among the roles of a program that calls NewFake: see child.Main.
const Role = "kfake"

// NewFake starts kfake in a process of this program, with its data in dir.
func NewFake(ctx context.Context, dir string) (*Kafka, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	k := &Kafka{Addr: addr}
	k.start = func() (*child.Process, error) {
		process, _, err := child.Run(Role, addr, dir)
		return process, err
	}
	return k, k.Start(ctx)
}

// Fake is the process: kfake on an address with the data of a folder, until SIGTERM.
func Fake(args []string) error {
	port, err := strconv.Atoi(args[0][strings.LastIndexByte(args[0], ':')+1:])
	if err != nil {
		return err
	}
	limit := map[string]string{"message.max.bytes": strconv.Itoa(MaxBatch)}
	cluster, err := kfake.NewCluster(kfake.Ports(port), kfake.DataDir(args[1]), kfake.BrokerConfigs(limit))
	if err != nil {
		return err
	}
	defer cluster.Close()
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM)
	<-ends
	return nil
}
