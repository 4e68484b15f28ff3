"""A shop's support desk: tools on a database, rules, and a simulated customer."""
