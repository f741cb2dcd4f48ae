package cmd

import "testing"

func TestExecute_UnknownBackend(t *testing.T) {
	if err := Execute([]string{"replay", "--latency-model", "nonesuch"}); err == nil {
		t.Error("a backend that is none is accepted")
	}
}
