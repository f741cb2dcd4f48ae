// Command blis of a stand-in for the host: as much of it as a latency model meets.
package main

import (
	"fmt"
	"os"

	"github.com/inference-sim/inference-sim/cmd"
)

func main() {
	if err := cmd.Execute(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
