// A writer of histories in Go, with the standard library alone.
package main

import (
	"bufio"
	"encoding/json"
	"os"
)

// Event is one line: its name is under "event", the other fields are those of the event.
type Event map[string]any

// History writes events to a file.
type History struct {
	file *os.File
	out  *bufio.Writer
}

// Open creates the file and writes the first line.
func Open(path string, numBlocks, blockSize int) (*History, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	log := &History{file, bufio.NewWriter(file)}
	first := Event{"schema": "kvref-history/1", "num_blocks": numBlocks, "block_size": blockSize}
	return log, log.Log("open", first)
}

// Log writes one event.
func (log *History) Log(name string, fields Event) error {
	fields["event"] = name
	return json.NewEncoder(log.out).Encode(fields)
}

// Close writes the last line.
func (log *History) Close(numFree int) error {
	if err := log.Log("close", Event{"num_free": numFree}); err != nil {
		return err
	}
	if err := log.out.Flush(); err != nil {
		return err
	}
	return log.file.Close()
}

func main() {
	log, err := Open(os.Args[1], 8, 4)
	if err != nil {
		panic(err)
	}
	for _, line := range []struct {
		name   string
		fields Event
	}{
		{"request", Event{"request": 1, "tokens": []int{11, 12, 13, 14, 15, 16}}},
		{"allocate", Event{"request": 1, "blocks": []int{5, 2}}},
		{"compute", Event{"requests": []int{1}, "starts": []int{0}, "counts": []int{6}}},
		{"publish", Event{"blocks": []int{5}}},
		{"finish", Event{"request": 1}},
		{"free", Event{"request": 1, "blocks": []int{2, 5}}},
	} {
		if err := log.Log(line.name, line.fields); err != nil {
			panic(err)
		}
	}
	if err := log.Close(8); err != nil {
		panic(err)
	}
}
