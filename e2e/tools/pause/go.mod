module metricsstore.local/tools/pause

go 1.26
