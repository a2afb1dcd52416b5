// etcd as a peer: some clients put values, each waits for its answer. Prints one JSON object.
//
// use: etcdpeer ENDPOINTS CLIENTS SIZE SECONDS
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	connectionsMax = 16
	keys           = 1000
	warmUp         = time.Second
)

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func connect(endpoints string, count int) []*clientv3.Client {
	connections := make([]*clientv3.Client, 0, count)
	for i := 0; i < count; i++ {
		client, err := clientv3.New(clientv3.Config{
			Endpoints:   strings.Split(endpoints, ","),
			DialTimeout: 3 * time.Second,
		})
		if err != nil {
			log.Fatal(err)
		}
		connections = append(connections, client)
	}
	return connections
}

// put puts values until the end and returns how long each took after the warm-up.
func put(client *clientv3.Client, who int, value string, from, until time.Time) []time.Duration {
	var times []time.Duration
	for i := 0; ; i++ {
		start := time.Now()
		if start.After(until) {
			return times
		}
		if _, err := client.Put(context.Background(), fmt.Sprintf("k%d", (who+i*7)%keys), value); err != nil {
			log.Fatal(err)
		}
		if start.After(from) {
			times = append(times, time.Since(start))
		}
	}
}

func main() {
	if len(os.Args) != 5 {
		log.Fatal("use: etcdpeer ENDPOINTS CLIENTS SIZE SECONDS")
	}
	clients, size := number(os.Args[2]), number(os.Args[3])
	seconds, err := strconv.ParseFloat(os.Args[4], 64)
	if err != nil {
		log.Fatal(err)
	}
	connections := connect(os.Args[1], min(clients, connectionsMax))
	value := strings.Repeat("x", size)
	from := time.Now().Add(warmUp)
	until := from.Add(time.Duration(seconds * float64(time.Second)))

	var all []time.Duration
	var mutex sync.Mutex
	var group sync.WaitGroup
	for i := 0; i < clients; i++ {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			times := put(connections[i%len(connections)], i, value, from, until)
			mutex.Lock()
			all = append(all, times...)
			mutex.Unlock()
		}(i)
	}
	group.Wait()
	if len(all) == 0 {
		log.Fatal("nothing was put")
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	fmt.Printf("{\"size\":%d,\"messages_per_second\":%.0f,\"latency_ns\":{\"p50\":%d,\"p99\":%d}}\n",
		size, float64(len(all))/seconds, all[len(all)/2], all[len(all)*99/100])
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}
