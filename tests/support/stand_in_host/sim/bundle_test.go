package sim

import "testing"

func TestIsValidLatencyBackend(t *testing.T) {
	for _, name := range []string{"roofline", "trained-physics"} {
		if !IsValidLatencyBackend(name) {
			t.Errorf("%q is not valid", name)
		}
	}
}

func TestValidLatencyBackendNames_ExcludesRemoved(t *testing.T) {
	names := ValidLatencyBackendNames()
	for _, removed := range []string{"blackbox", "crossmodel"} {
		if IsValidLatencyBackend(removed) {
			t.Errorf("%q is valid", removed)
		}
	}
	// there are exactly 2 backends
	expected := []string{"roofline", "trained-physics"}
	if len(names) != len(expected) {
		t.Fatalf("%d backends: %v", len(names), names)
	}
	for i, name := range expected {
		if names[i] != name {
			t.Errorf("backend %d is %q, not %q", i, names[i], name)
		}
	}
}
