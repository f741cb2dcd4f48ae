package sim

import "sort"

// The names that a configuration may use.
var (
	validSchedulers      = map[string]bool{"": true, "fcfs": true, "sjf": true}
	validLatencyBackends = map[string]bool{"": true, "roofline": true, "trained-physics": true}
)

// IsValidLatencyBackend tells whether there is a latency backend of this name.
func IsValidLatencyBackend(name string) bool { return validLatencyBackends[name] }

// ValidLatencyBackendNames lists the latency backends in order.
func ValidLatencyBackendNames() []string { return listed(validLatencyBackends) }

// ValidSchedulerNames lists the schedulers in order.
func ValidSchedulerNames() []string { return listed(validSchedulers) }

func listed(valid map[string]bool) []string {
	var names []string
	for name := range valid {
		if name != "" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}
