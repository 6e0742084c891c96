--[[ jobs_by_id: reads the jobs whose ids an operator or a producer sends, and collects the outcome for each.

Args: each each_count
Uses: state(read_line) stored_lines(read_lines)
]]

--- Call `decide(id, job, i)` for each job of the call's records that Redis has. `decide` returns the job's outcome;
--- nil: the outcome is the job's state, which `decide` may have changed. `decide` sets the state `gone` for a job that
--- leaves Redis. If an id comes twice, the second record finds the state that the first one left. Returns the answer:
--- ids and outcomes, with `gone` for a job that Redis did not have, or has no longer.
local function decide_by_id(decide)
  local ids = {}
  for i = 1, each_count do
    ids[i] = each(i)
  end
  local lines = read_lines(ids)
  local answer, seen = {}, {}
  for i = 1, each_count do
    local id = ids[i]
    local job = seen[id] or read_line(lines[i])
    seen[id] = job
    local outcome = 'gone'
    if job and job.state ~= 'gone' then
      outcome = decide(id, job, i) or job.state
    end
    answer[#answer + 1], answer[#answer + 2] = id, outcome
  end
  return answer
end
