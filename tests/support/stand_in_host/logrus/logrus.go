// Package logrus stands in for the host's logger.
package logrus

import (
	"fmt"
	"os"
)

// Warn writes a warning.
func Warn(values ...any) {
	fmt.Fprintf(os.Stderr, "level=warning msg=%q\n", fmt.Sprint(values...))
}

// Warnf writes a warning.
func Warnf(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "level=warning msg=%q\n", fmt.Sprintf(format, values...))
}

// Fatalf writes why the program ends, and ends it.
func Fatalf(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "level=fatal msg=%q\n", fmt.Sprintf(format, values...))
	os.Exit(1)
}
