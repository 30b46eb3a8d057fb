"""The front end `native`: what the balancer shares with the module that decides inside Envoy; see README.md beside."""
