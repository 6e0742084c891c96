--[[ stored_lines: where jobs stand, by `state` and `jobs` together.

A plain job that has done nothing but wait since it was enqueued has no line in `state`, unless its JSON is long. What its
line would say stands on the first line of its value in `jobs`, before the JSON; it stays there when the job does more, and
`state` holds from then on. A job that dies of an error has that error there instead (include/ends/outcomes), also when it
is requeued.

Keys: state jobs
Uses: batch(read_many)
]]

--- What the state line of a job without one says, from its value in `jobs`; nil if the value is not that of such a job.
local function waiting_line(value)
  local head = value and value:match('^(task=[^\n]*)\n')
  return head and 'ready ' .. head
end

--- The state lines of jobs, in order; false for a job that Redis does not have.
local function read_lines(ids)
  local lines = read_many(state, ids)
  local absent, places = {}, {}
  for i = 1, #ids do
    if not lines[i] then
      absent[#absent + 1], places[#places + 1] = ids[i], i
    end
  end
  local values = read_many(jobs, absent)
  for k = 1, #absent do
    lines[places[k]] = waiting_line(values[k]) or false
  end
  return lines
end
